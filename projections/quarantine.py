"""What cannot be applied is put aside, byte for byte, in the transaction that lets its offset pass.

The events of its key that come after it are put aside behind it (order_keeping.py), until somebody
redrives or discards them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg import Connection, Cursor

from infrastructure.record import Record
from projections.decoding import Category, Faulty

PARK = """
    INSERT INTO quarantined_events (
        consumer_name, topic, partition, "offset", record_timestamp_ms, key, value, header_names, header_values,
        event_id, kind, category, reason, content_hash
    )
    VALUES (
        %(consumer_name)s, %(topic)s, %(partition)s, %(offset)s, %(timestamp_ms)s, %(key)s, %(value)s,
        %(header_names)s::bytea[], %(header_values)s::bytea[], %(event_id)s, %(kind)s, %(category)s, %(reason)s,
        %(content_hash)s
    )
    ON CONFLICT DO NOTHING
"""

COUNT = """
    SELECT count(*) FILTER (WHERE kind = 'culprit'), count(*) FILTER (WHERE kind = 'follower')
    FROM quarantined_events WHERE consumer_name = %s AND state = 'parked'
"""

MOST_OF_ONE_KEY = """
    SELECT count(*) FROM quarantined_events
    WHERE consumer_name = %s AND state = 'parked' AND key_hash IS NOT NULL
    GROUP BY key_hash ORDER BY 1 DESC LIMIT 1
"""

LONGEST_REASON = 1_000


class Parked(NamedTuple):
    """A record that is not applied, and why."""

    record: Record
    fault: Faulty


@dataclass(frozen=True)
class Count:
    """Records of one consumer that wait for a decision. followers: those that wait only for an earlier one."""

    culprits: int
    followers: int

    @property
    def total(self) -> int:
        return self.culprits + self.followers


def park(tx: Connection, consumer_name: str, parked: Iterable[Parked]) -> list[Parked]:
    """Keeps each record with the reason why; returns those that were not there yet.

    A record that is delivered again is the same row: the first reason stays. The event is not claimed in
    the inbox, so that it can be applied later. Takes any bytes. Records of one key get ascending ids in
    the order given; the caller holds the locks of their keys.
    """
    # Those with a key come as given: whoever has the same ones waits for their key's lock. Those without
    # have no lock, and two consumers with the same records must not wait for each other in a circle.
    in_one_order = sorted(parked, key=lambda each: () if each.record.key is not None else _place(each))
    if not in_one_order:
        return []
    cursor = tx.cursor()
    cursor.executemany(PARK, [_row(consumer_name, *each) for each in in_one_order], returning=True)
    return [each for each, inserted in zip(in_one_order, _row_counts(cursor), strict=True) if inserted]


def count(connection: Connection, consumer_name: str) -> Count:
    """How many records of this consumer wait for a decision."""
    culprits, followers = connection.execute(COUNT, (consumer_name,)).fetchone() or (0, 0)
    return Count(culprits, followers)


def most_of_one_key(connection: Connection, consumer_name: str) -> int:
    """How many records of the key that has most of them."""
    (most,) = connection.execute(MOST_OF_ONE_KEY, (consumer_name,)).fetchone() or (0,)
    return int(most)


def key_hash(key: bytes) -> bytes:
    """As in the column of that name."""
    return sha256(key).digest()


def content_hash(record: Record) -> bytes:
    """Tells a record from another one at the same place, of a topic that was deleted and made anew."""
    return sha256((record.key or b"") + (record.value or b"")).digest()


def _row_counts(cursor: Cursor[Any]) -> list[int]:
    counts = [cursor.rowcount]
    while cursor.nextset():
        counts.append(cursor.rowcount)
    return counts


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
        "kind": "follower" if fault.category is Category.FOLLOWER else "culprit",
        "category": fault.category.value,
        "reason": storable(fault.reason),
        "content_hash": content_hash(record),
    }


def storable(reason: str) -> str:
    """A handler's reason may quote what it should not; what no text column takes must not get it stuck."""
    return reason[:LONGEST_REASON].encode(errors="replace").decode().replace("\0", "?")
