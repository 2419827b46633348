"""Public contracts as messages: made for a test, as records that Kafka might have brought, and sent to Kafka."""

import itertools
import secrets
from datetime import UTC, datetime

from confluent_kafka import Producer

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderedLine, OrderPlaced
from infrastructure.record import Headers, Record
from projections.batch import Readable

SAMPLE = (
    b'{"eventId":"evt_01JQ8X8F","eventType":"OrderPlaced","schemaVersion":1,"occurredAt":"2026-09-29T10:30:00Z",'
    b'"orderId":"ord_782","customerId":"cus_17","totalMinor":12900,"currency":"USD"}'
)
"""From the owner of the contract."""

_offsets = itertools.count()


def placed(order_id: str, *lines: tuple[str, int], event_id: str | None = None) -> OrderPlaced:
    """The order of these skus and quantities is placed. Without lines it has none at all."""
    return OrderPlaced(
        event_id=event_id or f"evt_{secrets.token_hex(16)}",
        event_type="OrderPlaced",
        schema_version=1,
        occurred_at=datetime(2026, 9, 29, 10, 30, tzinfo=UTC),
        order_id=order_id,
        customer_id="cus_17",
        total_minor=12900,
        currency="USD",
        lines=tuple(OrderedLine(sku=sku, quantity=quantity) for sku, quantity in lines) or None,
    )


def cancelled(order_id: str, event_id: str | None = None) -> OrderCancelled:
    return OrderCancelled(
        event_id=event_id or f"evt_{secrets.token_hex(16)}",
        event_type="OrderCancelled",
        schema_version=1,
        occurred_at=datetime(2026, 9, 29, 10, 31, tzinfo=UTC),
        order_id=order_id,
        reason="changed my mind",
    )


def record(
    value: bytes | None, key: bytes | None = b"ord_782", *, topic: str = "orders", headers: Headers = ()
) -> Record:
    """A record at an offset of its own."""
    return Record(topic, 0, next(_offsets), key, value, headers, 1_790_000_000_000)


def readable(contract: Contract) -> Readable:
    return Readable(record(contract.to_bytes(), contract.key.encode(), topic=contract.topic), contract)


class Sender:
    """Sends to Kafka whatever it is given."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.max.bytes": 10_000_000})

    def send(
        self, topic: str, value: bytes | None, key: bytes | None = None, *, headers: Headers = (), partition: int = -1
    ) -> None:
        self._producer.produce(topic, value, key, headers=list(headers), partition=partition)

    def contracts(self, topic: str, *contracts: Contract, partition: int = -1) -> None:
        """In this order; returns when Kafka has them."""
        for contract in contracts:
            self.send(topic, contract.to_bytes(), contract.key.encode(), partition=partition)
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(20.0) == 0
