"""What people see of a relay's quarantine, and what they decide about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from eventsourcing.persistence import StoredEvent
from psycopg.rows import class_row

from infrastructure.event_ids import fingerprint
from infrastructure.outgoing_quarantine import storable
from infrastructure.postgres import Connection

LIST = """
    SELECT id, relay, position, originator_id, originator_version, fingerprint, kind, category, problem,
           quarantined_at, attempts, tried_at, released_at, discarded_at, discarded_by, discard_reason,
           released_at IS NULL AND discarded_at IS NULL AND EXISTS (
               SELECT FROM outgoing_redrives AS redrive
               WHERE redrive.relay = entry.relay AND redrive.originator_id = entry.originator_id
           ) AS asked
    FROM outgoing_quarantine AS entry
    WHERE relay = %(relay)s
      AND (%(originator_id)s::text IS NULL OR originator_id = %(originator_id)s)
      AND (%(closed)s OR (released_at IS NULL AND discarded_at IS NULL))
      AND (%(id)s::bigint IS NULL OR id = %(id)s)
    ORDER BY id LIMIT %(limit)s
"""

STORED = """
    SELECT originator_id, originator_version, topic, state, stored_at FROM stored_events WHERE position = %s
"""

# Of the last two events of an aggregate, discarded at once, one has to see that the other is gone.
ONE_DISCARD_AT_A_TIME = """
    SELECT pg_advisory_xact_lock(hashtextextended(relay || '/' || originator_id, 0))
    FROM outgoing_quarantine WHERE relay = %(relay)s AND id = %(id)s
"""

DISCARD = """
    UPDATE outgoing_quarantine
    SET discarded_at = clock_timestamp(), discarded_by = %(by)s, discard_reason = %(reason)s
    WHERE relay = %(relay)s AND id = %(id)s AND released_at IS NULL AND discarded_at IS NULL
    RETURNING 1
"""

# The relay forgets that an aggregate is parked only in a redrive: of nothing, when this was its last parked event.
FORGET_IF_NOTHING_IS_LEFT = """
    INSERT INTO outgoing_redrives (relay, originator_id, hash)
    SELECT relay, originator_id, hash FROM outgoing_quarantine AS gone
    WHERE id = %(id)s AND NOT EXISTS (
        SELECT FROM outgoing_quarantine AS other
        WHERE other.relay = gone.relay AND other.originator_id = gone.originator_id
          AND other.released_at IS NULL AND other.discarded_at IS NULL
    )
    ON CONFLICT DO NOTHING
"""

COUNT = """
    SELECT count(*), count(DISTINCT originator_id) FROM outgoing_quarantine
    WHERE relay = %s AND released_at IS NULL AND discarded_at IS NULL
"""

PROGRESS = """
    SELECT (SELECT count(*) FROM outgoing_redrives
            WHERE relay = %(relay)s AND (%(originator_id)s::text IS NULL OR originator_id = %(originator_id)s)),
           count(*) FILTER (WHERE released_at >= %(since)s),
           count(*) FILTER (WHERE released_at IS NULL AND discarded_at IS NULL)
    FROM outgoing_quarantine
    WHERE relay = %(relay)s AND (%(originator_id)s::text IS NULL OR originator_id = %(originator_id)s)
"""

FAILED_SINCE = """
    SELECT id FROM outgoing_quarantine
    WHERE relay = %(relay)s AND (%(originator_id)s::text IS NULL OR originator_id = %(originator_id)s)
      AND released_at IS NULL AND discarded_at IS NULL AND tried_at >= %(since)s
    ORDER BY id LIMIT %(limit)s
"""


@dataclass(frozen=True)
class Record:
    """An entry as it is stored. asked: parked, and somebody has asked for another attempt."""

    id: int
    relay: str
    position: int
    originator_id: str
    originator_version: int
    fingerprint: bytes
    kind: str
    category: str
    problem: str
    quarantined_at: datetime
    attempts: int
    tried_at: datetime | None
    released_at: datetime | None
    discarded_at: datetime | None
    discarded_by: str | None
    discard_reason: str | None
    asked: bool


@dataclass(frozen=True)
class Progress:
    """Of a redrive. pending: aggregates whose turn has not come. released: entries, since it was asked for."""

    pending: int
    released: int
    left: int


def records(
    connection: Connection, relay: str, *, originator_id: str | None = None, closed: bool = False, limit: int
) -> list[Record]:
    """What is parked, in the order in which it was; with `closed`, what was released or discarded, too."""
    return _records(connection, relay=relay, originator_id=originator_id, closed=closed, id=None, limit=limit)


def record(connection: Connection, relay: str, entry_id: int) -> Record | None:
    found = _records(connection, relay=relay, originator_id=None, closed=True, id=entry_id, limit=1)
    return found[0] if found else None


def stored_event(connection: Connection, record: Record) -> tuple[StoredEvent, datetime] | None:
    """The event that was parked, and when it was stored; None when the store was set back: then another event is
    stored in its place, or none."""
    row = connection.execute(STORED, (record.position,)).fetchone()
    if row is None:
        return None
    event = StoredEvent(*row[:4])
    return (event, row[4]) if fingerprint(event) == bytes(record.fingerprint) else None


def discard(connection: Connection, relay: str, entry_id: int, reason: str, by: str) -> bool:
    """Whether it was parked until now. It stays as a record, and is never published."""
    values = {"relay": relay, "id": entry_id, "reason": storable(reason), "by": storable(by)}
    with connection.transaction():
        connection.execute(ONE_DISCARD_AT_A_TIME, values)
        if connection.execute(DISCARD, values).fetchone() is None:
            return False
        connection.execute(FORGET_IF_NOTHING_IS_LEFT, values)
    return True


def count(connection: Connection, relay: str) -> tuple[int, int]:
    """How many events are parked, and of how many aggregates."""
    row = connection.execute(COUNT, (relay,)).fetchone()
    return (row[0], row[1]) if row else (0, 0)


def progress(connection: Connection, relay: str, originator_id: str | None, since: datetime) -> Progress:
    values = {"relay": relay, "originator_id": originator_id, "since": since}
    row = connection.execute(PROGRESS, values).fetchone()
    return Progress(*row) if row else Progress(0, 0, 0)


def failed_since(
    connection: Connection, relay: str, originator_id: str | None, since: datetime, limit: int
) -> list[Record]:
    """Entries that were tried after `since` and failed again."""
    values: Mapping[str, object] = {
        "relay": relay,
        "originator_id": originator_id,
        "since": since,
        "limit": limit,
    }
    ids = [entry_id for (entry_id,) in connection.execute(FAILED_SINCE, values)]
    return [found for entry_id in ids if (found := record(connection, relay, entry_id))]


def _records(connection: Connection, **values: object) -> list[Record]:
    with connection.cursor(row_factory=class_row(Record)) as cursor:
        return cursor.execute(LIST, values).fetchall()
