"""The public contracts: exactly the agreed fields, strict on both sides, nothing private."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.outbox import to_contracts
from domain.orders.public_contracts import OrderCancelled, OrderedLine, OrderPlaced

SAMPLE = (
    b'{"eventId":"evt_01JQ8X8F","eventType":"OrderPlaced","schemaVersion":1,"occurredAt":"2026-09-29T10:30:00Z",'
    b'"orderId":"ord_782","customerId":"cus_17","totalMinor":12900,"currency":"USD"}'
)


def order_placed(**changes: object) -> bytes:
    return json.dumps(json.loads(SAMPLE) | changes).encode()


def test_the_owners_sample_is_read_and_written_back_byte_for_byte() -> None:
    placed = OrderPlaced.from_bytes(SAMPLE)
    assert (placed.order_id, placed.total_minor, placed.lines) == ("ord_782", 12900, None)
    assert placed.occurred_at == datetime(2026, 9, 29, 10, 30, tzinfo=UTC)
    assert placed.key == "ord_782"
    assert placed.to_bytes() == SAMPLE


def test_order_placed_v1_has_exactly_the_agreed_fields() -> None:
    placed = OrderPlaced.from_bytes(order_placed(lines=[{"sku": "pen", "quantity": 2}]))
    assert list(json.loads(placed.to_bytes())) == [
        "eventId",
        "eventType",
        "schemaVersion",
        "occurredAt",
        "orderId",
        "customerId",
        "totalMinor",
        "currency",
        "lines",
    ]
    assert json.loads(placed.to_bytes())["lines"] == [{"sku": "pen", "quantity": 2}]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_time_that_utc_does_not_have_is_refused_by_its_field(time: str) -> None:
    with pytest.raises(ValidationError) as refused:
        OrderPlaced.from_bytes(order_placed(occurredAt=time))
    assert [each["loc"] for each in refused.value.errors()] == [("occurredAt",)]


@pytest.mark.parametrize("total", [0, 1250, 2**53 - 1])
def test_a_whole_number_in_range_is_a_total(total: int) -> None:
    assert OrderPlaced.from_bytes(order_placed(totalMinor=total)).total_minor == total


@pytest.mark.parametrize(
    "total",
    [
        b"-1",
        b'"1250"',
        b"1250.0",
        b"1250.5",
        b"1e3",
        b"true",
        b"null",
        b"NaN",
        b"Infinity",
        b"9007199254740993",
        b"9007199254740993.0",
        b"1" + b"0" * 23,
    ],
)
def test_anything_else_is_not_a_total(total: bytes) -> None:
    with pytest.raises(ValidationError) as refused:
        OrderPlaced.from_bytes(SAMPLE.replace(b"12900", total))
    assert refused.value.errors()[0]["loc"] in {("totalMinor",), ()}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eventId", ""),
        ("eventId", "evt 1"),
        ("eventType", "OrderShipped"),
        ("schemaVersion", 2),
        ("schemaVersion", 0),
        ("schemaVersion", "1"),
        ("schemaVersion", True),
        ("schemaVersion", 1.0),
        ("occurredAt", "2026-09-29T10:30:00"),
        ("occurredAt", "2026-09-29"),
        ("occurredAt", "1790678200"),
        ("occurredAt", 1790678200),
        ("orderId", "ord\u0000"),
        ("orderId", ""),
        ("customerId", "cus\u0000"),
        ("currency", "eur"),
        ("currency", "XXX"),
        ("lines", []),
        ("lines", [{"sku": "pen", "quantity": 0}]),
        ("lines", [{"sku": "pen", "quantity": 1.0}]),
    ],
)
def test_a_wrong_value_is_refused_by_its_field_and_never_quoted(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        OrderPlaced.from_bytes(order_placed(**{field: value}))
    assert refused.value.errors()[0]["loc"][0] == field
    assert "input_value" not in str(refused.value)


@pytest.mark.parametrize("field", json.loads(SAMPLE))
def test_every_field_but_lines_is_required(field: str) -> None:
    body = json.loads(SAMPLE)
    del body[field]
    with pytest.raises(ValidationError):
        OrderPlaced.from_bytes(json.dumps(body).encode())


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValidationError):
        OrderPlaced.from_bytes(SAMPLE.replace(b"cus_17", b"cus_\\ud800"))


def test_a_field_added_later_is_ignored() -> None:
    assert OrderPlaced.from_bytes(order_placed(promoCode="SUMMER")) == OrderPlaced.from_bytes(SAMPLE)


def test_a_time_in_another_zone_is_the_same_moment_in_utc() -> None:
    placed = OrderPlaced.from_bytes(order_placed(occurredAt="2026-09-29T12:30:00+02:00"))
    assert placed.to_bytes() == SAMPLE


def test_a_contract_cannot_be_changed_after_it_was_made() -> None:
    with pytest.raises(ValidationError):
        OrderPlaced.from_bytes(SAMPLE).total_minor = 1  # type: ignore[misc]


def test_an_order_becomes_its_contracts_and_no_private_field_leaks() -> None:
    orders = Orders()
    placed_at = datetime(2026, 9, 29, 12, 30, tzinfo=timezone(timedelta(hours=2)))
    line = LineItem(sku="pen", quantity=2, unit_price_minor=345)
    orders.place(PlaceOrder(order_id="ord_1", customer_id="cus_1", currency="EUR", lines=(line,), placed_at=placed_at))
    orders.cancel(CancelOrder(order_id="ord_1", reason="changed my mind"))

    placed, cancelled = (
        contract
        for notification in orders.recorder.select_notifications(1, 10)
        for contract in to_contracts(
            orders.mapper.to_domain_event(notification),  # type: ignore[arg-type]
            lambda contract: f"evt_{contract.contract_type()}",
        )
    )
    assert placed == OrderPlaced(
        event_id="evt_OrderPlaced",
        event_type="OrderPlaced",
        schema_version=1,
        occurred_at=placed_at,
        order_id="ord_1",
        customer_id="cus_1",
        total_minor=690,
        currency="EUR",
        lines=(OrderedLine(sku="pen", quantity=2),),
    )
    assert isinstance(cancelled, OrderCancelled)
    assert (cancelled.event_id, cancelled.key, cancelled.reason) == ("evt_OrderCancelled", "ord_1", "changed my mind")
    assert b"unit" not in placed.to_bytes().lower()
