"""The entries of a quarantine, for whoever decides about them; their bytes only where they are asked for."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection

from infrastructure.record import Record

ENTRIES = """
    SELECT id, kind, state, category, reason, event_id, topic, partition, "offset", key, attempts, quarantined_at,
        closed_at, closed_by, closed_reason, exported_at
    FROM quarantined_events
    WHERE consumer_name = %(consumer_name)s AND (%(closed)s OR state = 'parked')
    AND (%(id)s::bigint IS NULL OR id = %(id)s) AND (%(key)s::bytea IS NULL OR key_hash = sha256(%(key)s))
    ORDER BY id LIMIT %(limit)s
"""
BYTES = """
    SELECT topic, partition, "offset", key, value, header_names, header_values, record_timestamp_ms
    FROM quarantined_events WHERE consumer_name = %s AND id = %s
"""
# In the order in which their first entries came; a record without a key is one by itself.
KEYS = """
    SELECT key, CASE WHEN key IS NULL THEN id END FROM quarantined_events
    WHERE consumer_name = %s AND state = 'parked' GROUP BY 1, 2 ORDER BY min(id)
"""

COUNT = """
    SELECT count(*) FROM quarantined_events WHERE consumer_name = %(consumer_name)s AND state = 'parked'
    AND CASE WHEN %(key)s::bytea IS NULL THEN id = %(id)s ELSE key_hash = sha256(%(key)s) END
"""


@dataclass(frozen=True)
class Entry:
    """One record in quarantine, without its value and headers.

    kind: `culprit` or `follower`. state: `parked`, `released` or `discarded`; closed_reason and closed_by
    belong to a discard. attempts: redrives in which it failed again.
    """

    id: int
    kind: str
    state: str
    category: str
    reason: str
    event_id: str | None
    topic: str
    partition: int
    offset: int
    key: bytes | None
    attempts: int
    quarantined_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    closed_reason: str | None
    exported_at: datetime | None


@dataclass(frozen=True)
class ParkedKey:
    """What is released together, in order. entry_id: of a record without a key, which is alone; else None."""

    key: bytes | None
    entry_id: int | None = None


EVERY_KEY = ParkedKey(None)


def entries(
    connection: Connection, consumer_name: str, key: ParkedKey = EVERY_KEY, *, closed: bool = False, limit: int = 100
) -> list[Entry]:
    """In the order of their ids; of one key if given; released and discarded ones too if asked."""
    named = {"consumer_name": consumer_name, "id": key.entry_id, "key": key.key, "closed": closed, "limit": limit}
    return [Entry(*row) for row in connection.execute(ENTRIES, named)]


def entry(connection: Connection, consumer_name: str, entry_id: int) -> Entry | None:
    named = {"consumer_name": consumer_name, "id": entry_id, "key": None, "closed": True, "limit": 1}
    row = connection.execute(ENTRIES, named).fetchone()
    return Entry(*row) if row else None


def record_of(connection: Connection, consumer_name: str, entry_id: int) -> Record | None:
    """As it came; without value and headers when the entry was released, and None when there is no such entry."""
    row = connection.execute(BYTES, (consumer_name, entry_id)).fetchone()
    if row is None:
        return None
    topic, partition, offset, key, value, names, values, timestamp_ms = row
    headers = tuple((name.decode(), content) for name, content in zip(names, values, strict=True))
    return Record(topic, partition, offset, key, value, headers, timestamp_ms)


def parked_keys(connection: Connection, consumer_name: str) -> list[ParkedKey]:
    """Those of which something is parked; no more than the quarantine may hold entries."""
    return [ParkedKey(*row) for row in connection.execute(KEYS, (consumer_name,))]


def count_parked(connection: Connection, consumer_name: str, key: ParkedKey) -> int:
    named = {"consumer_name": consumer_name, "key": key.key, "id": key.entry_id}
    (number,) = connection.execute(COUNT, named).fetchone() or (0,)
    return int(number)
