"""A dead-letter topic as a copy of the quarantine. The table is the truth: no crash loses an entry on its way there."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from psycopg import Connection

from domain.errors import CounterfoilError
from infrastructure.producer import OwnProducer, producer_config
from infrastructure.settings import Settings

NOT_EXPORTED = """
    SELECT id, topic, partition, "offset", record_timestamp_ms, key, value, header_names, header_values, category,
        reason
    FROM quarantined_events
    WHERE consumer_name = %s AND state = 'parked' AND exported_at IS NULL AND id > %s ORDER BY id LIMIT %s
"""
EXPORTED = "UPDATE quarantined_events SET exported_at = now() WHERE id = ANY (%s)"

PAGE = 50
"""Entries in memory at once; a record may have megabytes."""
LARGEST_RECORD = 100_000_000
"""Bytes. What was received from a topic is larger than what we publish ourselves, perhaps; the broker has the say."""
_TURN = 0.1


@dataclass(eq=False)
class ExportFailed(CounterfoilError):
    """Kafka did not take all. exported: entries that it has, and that are marked. error: its name of the reason.

    What to do: remove the cause, and export again. What Kafka has taken without saying so is then there twice.
    """

    exported: int
    error: str

    def __str__(self) -> str:
        return (
            f"Kafka did not take an entry ({self.error}); {self.exported} were exported. "
            "Does the topic exist, and may it be written to? Remove the cause, and export again."
        )


def export(settings: Settings, connection: Connection, consumer_name: str, topic: str, stop: Event) -> int:
    """Publishes what is parked and was not exported yet, in the order of the entries' ids; returns how many.

    The entries stay as they are, and are marked once Kafka has acknowledged them; killed in between, it
    exports some again. Key, value and headers are those of the record; `kafka_dlt-` headers are added.
    Raises ExportFailed; the topic must exist.
    """
    producer = OwnProducer(producer_config(settings) | {"message.max.bytes": LARGEST_RECORD})
    last, exported = 0, 0
    try:
        while not stop.is_set():
            rows = connection.execute(NOT_EXPORTED, (consumer_name, last, PAGE)).fetchall()
            if not rows:
                break
            last = rows[-1][0]
            acknowledged, error = _send(producer.get(), topic, consumer_name, rows, settings.publish_timeout, stop)
            connection.execute(EXPORTED, (acknowledged,))
            exported += len(acknowledged)
            if error:
                raise ExportFailed(exported, error)
    finally:
        producer.close()
    return exported


def _send(
    producer: Producer, topic: str, consumer_name: str, rows: list[tuple[Any, ...]], patience: float, stop: Event
) -> tuple[list[int], str | None]:
    """Which of the entries Kafka has, and what it said of the first that it has not."""
    acknowledged: list[int] = []
    errors: list[str] = []

    def report(entry_id: int, error: KafkaError | None, _message: object) -> None:
        if error is None:
            acknowledged.append(entry_id)
        else:
            errors.append(error.name())

    try:
        for row in rows:
            _produce(producer, topic, consumer_name, row, partial(report, row[0]))
    except (KafkaException, BufferError) as error:
        errors.append(error.args[0].name() if isinstance(error, KafkaException) else type(error).__name__)
    deadline = monotonic() + patience + _TURN
    while producer.flush(_TURN) and monotonic() < deadline and not stop.is_set():
        pass
    if len(acknowledged) < len(rows) and not errors and not stop.is_set():
        errors.append("_TIMED_OUT")
    return acknowledged, errors[0] if errors else None


def _produce(
    producer: Producer, topic: str, consumer_name: str, row: tuple[Any, ...], report: Callable[..., None]
) -> None:
    _, from_topic, partition, offset, timestamp_ms, key, value, names, values, category, reason = row
    added = _headers(consumer_name, from_topic, partition, offset, timestamp_ms, category, reason)
    headers = [(name.decode(), content) for name, content in zip(names, values, strict=True)] + added
    producer.produce(topic, value, key, headers=headers, on_delivery=report)


def _headers(
    consumer_name: str,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int | None,
    category: str,
    reason: str,
) -> list[tuple[str, bytes | None]]:
    """As Spring for Apache Kafka names and encodes them: numbers are big-endian, of 4 bytes the partition, of 8 the
    others. Where it has the class of an exception we have the category."""
    headers: list[tuple[str, bytes | None]] = [
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", partition)),
        ("kafka_dlt-original-offset", struct.pack(">q", offset)),
        ("kafka_dlt-original-consumer-group", consumer_name.encode()),
        ("kafka_dlt-exception-fqcn", category.encode()),
        ("kafka_dlt-exception-message", reason.encode()),
    ]
    if timestamp_ms is not None:
        headers.append(("kafka_dlt-original-timestamp", struct.pack(">q", timestamp_ms)))
    return headers
