"""What the business promises of an order, without any database."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from eventsourcing.persistence import IntegrityError
from pydantic import ValidationError

from domain.application import VersionConflict
from domain.orders.application import Answer, Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.order import Line, Order
from domain.orders.outbox import to_contracts
from domain.orders.public_contracts import OrderCancelled, OrderedLine, OrderPlaced
from domain.testing import contract, event, given, given_application


def place(order_id: str = "ord_1", **changes: object) -> PlaceOrder:
    fields = {
        "order_id": order_id,
        "customer_id": "cus_1",
        "currency": "EUR",
        "lines": (LineItem(sku="pen", quantity=2, unit_price_minor=345),),
    }
    return PlaceOrder(**(fields | changes))  # type: ignore[arg-type]


PLACED = event(
    Order.Placed,
    customer_id="cus_1",
    currency="EUR",
    lines=(Line(sku="pen", quantity=2, unit_price_minor=345),),
    placed_at=None,
)
CANCELLED = event(Order.Cancelled, reason="changed my mind")


def test_an_order_is_placed_as_it_was_asked_for() -> None:
    order = given(Order).when(lambda: Order.place(place())).then(PLACED)
    assert (order.total_minor, order.status) == (690, "placed")


def test_a_total_that_json_could_not_carry_exactly_is_refused() -> None:
    line = LineItem(sku="yacht", quantity=2, unit_price_minor=2**52)
    given(Order).when(lambda: Order.place(place(lines=(line,)))).then_refused("total_too_large")


def test_a_cancelled_order_keeps_its_reason() -> None:
    order = given(Order, PLACED).when(lambda order: order.cancel("changed my mind")).then(CANCELLED)
    assert (order.status, order.cancelled_because) == ("cancelled", "changed my mind")


def test_cancelling_again_for_the_same_reason_changes_nothing() -> None:
    given(Order, PLACED, CANCELLED).when(lambda order: order.cancel("changed my mind")).then_nothing()


def test_cancelling_again_for_another_reason_is_refused() -> None:
    given(Order, PLACED, CANCELLED).when(lambda order: order.cancel("too dear")).then_refused("already_cancelled")


def placed(orders: Orders) -> Answer:
    return orders.place(place())


def cancelled(orders: Orders) -> Answer:
    return orders.cancel(CancelOrder(order_id="ord_1", reason="changed my mind"))


def test_an_order_placed_is_stored_with_its_total() -> None:
    orders = Orders()
    answer = given_application(orders).when(placed).then(PLACED)
    assert answer.changed
    assert orders.get("ord_1") == answer.order


def test_the_same_command_again_gives_the_same_order_and_stores_nothing() -> None:
    answer = given_application(Orders(), placed).when(placed).then_nothing()
    assert not answer.changed
    assert answer.order.total_minor == 690


@pytest.mark.parametrize(
    "other",
    [
        {"customer_id": "cus_2"},
        {"currency": "USD"},
        {"lines": (LineItem(sku="pen", quantity=3, unit_price_minor=345),)},
        {"placed_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_the_same_order_id_with_other_content_is_refused(other: dict[str, object]) -> None:
    again = given_application(Orders(), placed).when(lambda orders: orders.place(place(**other)))
    assert again.then_refused("order_id_taken").aggregate_id == "ord_1"


def test_a_placed_command_sent_again_after_the_cancellation_answers_with_the_cancelled_order() -> None:
    answer = given_application(Orders(), placed, cancelled).when(placed).then_nothing()
    assert (answer.changed, answer.order.status) == (False, "cancelled")


def test_cancelling_an_order_that_is_not_there_is_refused() -> None:
    given_application(Orders()).when(cancelled).then_refused("unknown_order")


def test_the_world_is_told_of_an_order_that_was_placed() -> None:
    told = contract(
        OrderPlaced,
        order_id="ord_1",
        customer_id="cus_1",
        total_minor=690,
        currency="EUR",
        lines=(OrderedLine(sku="pen", quantity=2),),
    )
    given_application(Orders()).when(placed).then_published(to_contracts, told)
    given_application(Orders(), placed).when(placed).then_published(to_contracts)


def test_the_world_is_told_of_an_order_that_was_cancelled() -> None:
    told = contract(OrderCancelled, order_id="ord_1", reason="changed my mind")
    given_application(Orders(), placed).when(cancelled).then_published(to_contracts, told)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order_id", ""),
        ("order_id", " ord_1"),
        ("order_id", "ord\x00_1"),
        ("order_id", "ord_\ud800"),
        ("order_id", "o" * 129),
        ("customer_id", "cus\x00"),
        ("customer_id", "cus\ud800"),
        ("currency", "eur"),
        ("currency", "XXX"),
        ("currency", "EURO"),
        ("lines", ()),
        ("placed_at", datetime(2026, 1, 1)),  # noqa: DTZ001
        ("placed_at", 1_700_000_000),
        ("placed_at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_a_bad_field_is_refused_by_name_before_anything_is_stored(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        place(**{field: value})
    assert refused.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantity", 0),
        ("quantity", -1),
        ("quantity", 1.0),
        ("quantity", "1"),
        ("quantity", True),
        ("unit_price_minor", -1),
        ("unit_price_minor", 12.5),
        ("unit_price_minor", float("nan")),
        ("unit_price_minor", 2**53),
        ("sku", "pen\x00"),
    ],
)
def test_a_bad_line_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        LineItem(**({"sku": "pen", "quantity": 1, "unit_price_minor": 100} | {field: value}))  # type: ignore[arg-type]
    assert refused.value.errors()[0]["loc"] == (field,)


class RacedOrders(Orders):
    """Another writer places the order between this one's look and its save, a number of times."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self.races = races

    def _place(self, command: PlaceOrder):  # type: ignore[no-untyped-def]
        stored = self.get(command.order_id)
        if self.races:
            self.races -= 1
            if stored is None:
                self.save(Order.place(command))
            raise IntegrityError
        return super()._place(command)


def test_a_version_conflict_is_tried_again_from_the_start() -> None:
    orders = RacedOrders(races=3)
    assert not orders.place(place()).changed
    assert orders.recorder.max_notification_id() == 1


def test_endless_version_conflicts_end_in_a_clear_error() -> None:
    orders = RacedOrders(races=1000)
    with pytest.raises(VersionConflict) as gave_up:
        orders.place(place())
    assert gave_up.value.attempts == Orders.attempts
