"""What travels beside a contract: CloudEvents attributes that never change for the same event."""

import json
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.cloud_events import Headers, envelope

NAMESPACE = UUID("7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11")
PLACED = OrderPlaced(
    event_id="evt_0192f0c1a2b38e0f9c3d5e7f80a1b2c3",
    event_type="OrderPlaced",
    schema_version=1,
    occurred_at=datetime(2026, 9, 29, 10, 30, tzinfo=UTC),
    order_id="ord_782",
    customer_id="cus_17",
    total_minor=12_900,
    currency="USD",
)


def headers(contract: Contract, sequence: int) -> Headers:
    return envelope(contract, contract.key.encode(), NAMESPACE, sequence)


def test_the_envelope_names_the_event_its_source_its_type_and_its_key() -> None:
    assert dict(headers(PLACED, 3)) == {
        "content-type": b"application/json",
        "ce_specversion": b"1.0",
        "ce_source": b"/counterfoil/7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11",
        "ce_type": b"OrderPlaced.v1",
        "ce_dataschema": b"urn:counterfoil:contract:OrderPlaced:1",
        "ce_id": b"evt_0192f0c1a2b38e0f9c3d5e7f80a1b2c3",
        "ce_time": b"2026-09-29T10:30:00Z",
        "ce_subject": b"ord_782",
        "ce_partitionkey": b"ord_782",
        "ce_sequence": b"3",
    }


def test_the_envelope_of_the_same_event_is_always_the_same_bytes_in_the_same_order() -> None:
    read_back = OrderPlaced.from_bytes(PLACED.to_bytes())

    assert headers(read_back, 3) == headers(PLACED, 3)


@pytest.mark.parametrize("microsecond", [0, 1, 120_000, 999_999])
def test_the_time_in_the_envelope_is_the_text_in_the_value(microsecond: int) -> None:
    contract = PLACED.model_copy(update={"occurred_at": PLACED.occurred_at.replace(microsecond=microsecond)})

    in_the_envelope = dict(headers(contract, 1))["ce_time"].decode()

    assert in_the_envelope == json.loads(contract.to_bytes())["occurredAt"]


def test_the_schema_is_an_absolute_uri_as_the_specification_wants() -> None:
    assert urlsplit(dict(headers(PLACED, 1))["ce_dataschema"].decode()).scheme == "urn"


def test_two_contracts_of_one_aggregate_differ_in_type_and_schema() -> None:
    cancelled = OrderCancelled(
        event_id=PLACED.event_id,
        event_type="OrderCancelled",
        schema_version=1,
        occurred_at=PLACED.occurred_at,
        order_id=PLACED.order_id,
        reason="found it cheaper",
    )

    of_placed = dict(headers(PLACED, 1))
    of_cancelled = dict(headers(cancelled, 1))

    assert {name for name in of_placed if of_placed[name] != of_cancelled[name]} == {"ce_type", "ce_dataschema"}


def test_a_key_outside_ascii_travels_as_utf_8() -> None:
    contract = PLACED.model_copy(update={"order_id": "замовлення-7"})

    assert dict(headers(contract, 1))["ce_subject"] == "замовлення-7".encode()
