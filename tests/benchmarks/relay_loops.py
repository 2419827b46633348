"""What a relay is measured against: a loop that only produces, and what one writes first with the library's objects.

All producers are configured as the relay's own, and warm before the clock starts.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid5

from confluent_kafka import KafkaError, Message, Producer
from psycopg import Connection

from domain.orders.public_contracts import OrderCancelled, OrderedLine, OrderPlaced
from infrastructure.delivery import OutgoingMessage
from infrastructure.producer import producer_config
from infrastructure.settings import Settings
from tests.benchmarks.append import LibraryOrders

TOPICS = (OrderPlaced.topic, OrderCancelled.topic)
CHECKPOINT = "UPDATE loop_checkpoint SET position = %s"
NAMESPACE = UUID("7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11")

_POLL_EVERY = 1_000

Headers = list[tuple[str, str | bytes | None]]
AsMessage = Callable[[Any], tuple[bytes, bytes, Headers]]
"""An event of the library's to key, value and headers."""


class Acknowledged:
    """Counts what arrived, as whoever must not lose anything has to."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, error: KafkaError | None, _message: Message) -> None:
        assert error is None
        self.count += 1


def warm_producer(settings: Settings) -> Producer:
    producer = Producer(producer_config(settings))
    for topic in TOPICS:
        producer.produce(topic, b"warm", b"warm")
    producer.flush(30)
    return producer


def bare_per_second(messages: Sequence[OutgoingMessage], settings: Settings) -> float:
    producer, acknowledged = warm_producer(settings), Acknowledged()
    ready: list[tuple[str, bytes, bytes, Headers]] = [(m.topic, m.value, m.key, [*m.headers]) for m in messages]
    started = time.perf_counter()
    for count, (topic, value, key, headers) in enumerate(ready):
        producer.produce(topic, value, key, headers=headers, on_delivery=acknowledged.report)
        if count % _POLL_EVERY == 0:
            producer.poll(0)
    producer.flush(60)
    elapsed = time.perf_counter() - started
    assert acknowledged.count == len(messages)
    return len(messages) / elapsed


def library_loop_per_second(
    application: LibraryOrders,
    connection: Connection[Any],
    settings: Settings,
    as_message: AsMessage,
    page: int,
    events: int,
) -> float:
    """Read a page, map, produce, flush, remember the position."""
    producer, acknowledged = warm_producer(settings), Acknowledged()
    position, done, started = 0, 0, time.perf_counter()
    while done < events:
        notifications = application.recorder.select_notifications(position, page, inclusive_of_start=False)
        for notification in notifications:
            key, value, headers = as_message(application.mapper.to_domain_event(notification))
            producer.produce(TOPICS[0], value, key, headers=headers, on_delivery=acknowledged.report)
        producer.flush(60)
        done, position = done + len(notifications), notifications[-1].id
        assert acknowledged.count == done
        connection.execute(CHECKPOINT, (position,))
    return done / (time.perf_counter() - started)


def validated(event: Any) -> tuple[bytes, bytes, Headers]:
    """The same contract, validated and written by pydantic, under an id that is the same for every publish."""
    contract = OrderPlaced(
        event_id=f"evt_{uuid5(NAMESPACE, f'{event.originator_id}/{event.originator_version}/OrderPlaced').hex}",
        event_type="OrderPlaced",
        schema_version=1,
        occurred_at=event.timestamp,
        order_id=event.originator_id.hex,
        customer_id=event.customer_id,
        total_minor=sum(line["quantity"] * line["unit_price_minor"] for line in event.lines),
        currency=event.currency,
        lines=tuple(OrderedLine(sku=line["sku"], quantity=line["quantity"]) for line in event.lines),
    )
    value = contract.model_dump_json(by_alias=True, exclude_none=True).encode()
    return (
        contract.order_id.encode(),
        value,
        headers_of(contract.event_id, contract.order_id, contract.occurred_at.isoformat(), event.originator_version),
    )


def unvalidated(event: Any) -> tuple[bytes, bytes, Headers]:
    """The same fields and headers, and nothing looks at what is in them."""
    key, time_text = event.originator_id.hex, event.timestamp.isoformat()
    contract = {
        "eventId": f"evt_{key}{event.originator_version}",
        "eventType": "OrderPlaced",
        "schemaVersion": 1,
        "occurredAt": time_text,
        "orderId": key,
        "customerId": event.customer_id,
        "totalMinor": sum(line["quantity"] * line["unit_price_minor"] for line in event.lines),
        "currency": event.currency,
        "lines": [{"sku": line["sku"], "quantity": line["quantity"]} for line in event.lines],
    }
    value = json.dumps(contract, separators=(",", ":")).encode()
    return key.encode(), value, headers_of(str(contract["eventId"]), key, time_text, event.originator_version)


def headers_of(event_id: str, key: str, time_text: str, version: int) -> Headers:
    return [
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_source", f"/counterfoil/{NAMESPACE}".encode()),
        ("ce_type", b"OrderPlaced.v1"),
        ("ce_dataschema", b"urn:counterfoil:contract:OrderPlaced:1"),
        ("ce_id", event_id.encode()),
        ("ce_time", time_text.encode()),
        ("ce_subject", key.encode()),
        ("ce_partitionkey", key.encode()),
        ("ce_sequence", b"%d" % version),
    ]
