"""Another attempt at parked events: asked for by an operator, made by the relay that has the lease."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import RecordedEvent
from infrastructure.lease import Lease, Shard
from infrastructure.outgoing_quarantine import Category, fence, storable
from infrastructure.postgres import Connection

# This, a discard and the relay change rows of the same aggregates. In order of their ids nobody waits in a circle.
ASK = """
    INSERT INTO outgoing_redrives (relay, originator_id, hash)
    SELECT DISTINCT relay, originator_id, hash FROM outgoing_quarantine
    WHERE relay = %(relay)s AND released_at IS NULL AND discarded_at IS NULL
      AND (%(originator_id)s::text IS NULL OR originator_id = %(originator_id)s)
    ORDER BY originator_id
    ON CONFLICT (relay, originator_id) DO UPDATE SET asked_at = excluded.asked_at
"""

NOW = "SELECT clock_timestamp()"

# Not yet one of which an event is parked above the relay's position: earlier events of it may not be published.
ASKED = """
    SELECT originator_id FROM outgoing_redrives AS asked
    WHERE relay = %(relay)s AND hash %% %(shards)s = %(shard)s AND NOT EXISTS (
        SELECT FROM outgoing_quarantine AS ahead
        WHERE ahead.relay = asked.relay AND ahead.originator_id = asked.originator_id
          AND ahead.released_at IS NULL AND ahead.discarded_at IS NULL AND ahead.position > %(position)s
    )
    ORDER BY originator_id LIMIT %(limit)s
"""

NEXT_PARKED_WITHIN = """
    SELECT id, key, fingerprint, originator_id, originator_version, topic, state, stored_position
    FROM (
        SELECT parked.*, stored.originator_id, stored.originator_version, stored.topic, stored.state,
               stored.position AS stored_position,
               sum(octet_length(stored.state)) OVER (
                   ORDER BY parked.key, parked.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS before
        FROM (
            SELECT id, originator_id AS key, position, fingerprint FROM outgoing_quarantine
            WHERE relay = %(relay)s AND originator_id = ANY(%(originator_ids)s)
              AND released_at IS NULL AND discarded_at IS NULL
            ORDER BY originator_id, position LIMIT %(limit)s
        ) AS parked LEFT JOIN stored_events AS stored ON stored.position = parked.position
    ) AS page
    WHERE coalesce(before, 0) < %(bytes)s
    ORDER BY key, position
"""

# One that was discarded while it was on its way has been published all the same.
RELEASE = """
    UPDATE outgoing_quarantine SET released_at = clock_timestamp() WHERE id = ANY(%(ids)s) AND released_at IS NULL
"""

FAILED_AGAIN = """
    UPDATE outgoing_quarantine
    SET kind = 'culprit', category = %(category)s, problem = %(problem)s, attempts = attempts + 1,
        tried_at = clock_timestamp()
    WHERE id = %(id)s AND released_at IS NULL
"""

FIRST_PARKED = """
    SELECT originator_id, min(position) FROM outgoing_quarantine
    WHERE relay = %(relay)s AND originator_id = ANY(%(originator_ids)s)
      AND released_at IS NULL AND discarded_at IS NULL
    GROUP BY originator_id
"""

# Locked first, in the order in which ASK changes them.
DONE = """
    WITH done AS MATERIALIZED (
        SELECT relay, originator_id FROM outgoing_redrives
        WHERE relay = %(relay)s AND originator_id = ANY(%(originator_ids)s)
        ORDER BY originator_id FOR UPDATE
    )
    DELETE FROM outgoing_redrives WHERE (relay, originator_id) IN (SELECT relay, originator_id FROM done)
"""


@dataclass(frozen=True)
class ParkedEvent:
    """id: of its entry. event: None when what is stored there is not that event any more."""

    id: int
    originator_id: str
    event: RecordedEvent | None


@dataclass(frozen=True)
class FailedAgain:
    parked: ParkedEvent
    category: Category
    problem: str


def ask(connection: Connection, relay: str, originator_id: str | None = None) -> tuple[int, datetime]:
    """Asks for another attempt at what is parked of this aggregate, or of all of them; for how many, and when it was
    asked by the database's clock. To ask again changes nothing but the time."""
    row = connection.execute(NOW).fetchone()
    assert row is not None
    asked = connection.execute(ASK, {"relay": relay, "originator_id": originator_id})
    return asked.rowcount, row[0]


def asked_for(connection: Connection, shard: Shard, position: int, limit: int) -> list[str]:
    """Some of the aggregates of this shard for which somebody has asked, in the order of their ids.

    position: of the relay; an aggregate waits until all that is parked of it has been passed.
    """
    values: dict[str, object] = {"relay": shard.relay, "shard": shard.number, "shards": shard.shards}
    values |= {"position": position, "limit": limit}
    return [originator_id for (originator_id,) in connection.execute(ASKED, values)]


def next_parked(
    connection: Connection, relay: str, originator_ids: Sequence[str], limit: int, max_bytes: int
) -> list[ParkedEvent]:
    """The first of what is parked of these, one aggregate after the other, each in order; at most `limit`.

    max_bytes: no further event once the states of those before it are as large as that, or larger.
    """
    values = {"relay": relay, "originator_ids": list(originator_ids), "limit": limit, "bytes": max_bytes}
    return [_parked_event(*row) for row in connection.execute(NEXT_PARKED_WITHIN, values, binary=True)]


def settle(
    connection: Connection,
    lease: Lease,
    originator_ids: Sequence[str],
    released: Sequence[ParkedEvent],
    failed: Sequence[FailedAgain],
) -> Mapping[str, int]:
    """Writes down, all or nothing, what came of an attempt; returns those that have parked events still, with the
    position of the first.

    released: was acknowledged. An aggregate of which one failed, or nothing is left, is not asked for any more.
    Raises LeaseLost.
    """
    relay, of_these = lease.relay, {"relay": lease.relay, "originator_ids": list(originator_ids)}
    with connection.transaction():
        fence(connection, lease)
        connection.execute(RELEASE, {"ids": [each.id for each in released]})
        for each in failed:
            values = {"id": each.parked.id, "category": str(each.category), "problem": storable(each.problem)}
            connection.execute(FAILED_AGAIN, values)
        left: dict[str, int] = dict(connection.execute(FIRST_PARKED, of_these).fetchall())
        done = {each.parked.originator_id for each in failed} | (set(originator_ids) - set(left))
        connection.execute(DONE, {"relay": relay, "originator_ids": list(done)})
    return left


def _parked_event(entry: int, originator_id: str, known: bytes, *stored: object) -> ParkedEvent:
    event = RecordedEvent(*stored) if stored[-1] is not None else None  # type: ignore[arg-type]
    if event is not None and fingerprint(event) != bytes(known):
        event = None
    return ParkedEvent(entry, originator_id, event)
