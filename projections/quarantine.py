"""What can never be applied is put aside, byte for byte, in the transaction that lets its offset pass."""

from collections.abc import Iterable
from typing import NamedTuple

from psycopg import Connection

from infrastructure.record import Record
from projections.decoding import Faulty

PARK = """
    INSERT INTO quarantined_events (
        consumer_name, topic, partition, "offset", record_timestamp_ms, key, value, header_names, header_values,
        event_id, category, reason
    )
    VALUES (
        %(consumer_name)s, %(topic)s, %(partition)s, %(offset)s, %(timestamp_ms)s, %(key)s, %(value)s,
        %(header_names)s::bytea[], %(header_values)s::bytea[], %(event_id)s, %(category)s, %(reason)s
    )
    ON CONFLICT DO NOTHING
"""

COUNT = "SELECT count(*) FROM quarantined_events WHERE consumer_name = %s"

LONGEST_REASON = 1_000


class Parked(NamedTuple):
    """A record that is not applied, and why."""

    record: Record
    fault: Faulty


def park(tx: Connection, consumer_name: str, parked: Iterable[Parked]) -> list[Parked]:
    """Keeps each record with the reason why; returns those that were not there yet.

    A record that is delivered again is the same row: the first reason stays. The event is not claimed in
    the inbox, so that it can be applied later. Takes any bytes.
    """
    in_one_order = sorted(parked, key=_place)  # two consumers with the same records must not wait in a circle
    return [each for each in in_one_order if tx.execute(PARK, _row(consumer_name, *each)).rowcount]


def count(connection: Connection, consumer_name: str) -> int:
    """How many records of this consumer wait for a decision."""
    row = connection.execute(COUNT, (consumer_name,)).fetchone()
    return row[0] if row else 0


def _place(parked: Parked) -> tuple[str, int, int]:
    return parked.record.topic, parked.record.partition, parked.record.offset


def _row(consumer_name: str, record: Record, fault: Faulty) -> dict[str, object]:
    return {
        "consumer_name": consumer_name,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "header_names": [name.encode() for name, _ in record.headers],
        "header_values": [value for _, value in record.headers],
        "event_id": fault.event_id,
        "category": fault.category.value,
        "reason": _storable(fault.reason),
    }


def _storable(reason: str) -> str:
    """A handler's reason may quote what it should not; what no text column takes must not get it stuck."""
    return reason[:LONGEST_REASON].encode(errors="replace").decode().replace("\0", "?")
