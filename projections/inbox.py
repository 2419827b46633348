"""The inbox: of all the times an event is delivered, exactly one is claimed, together with its effect."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from infrastructure.migrate import Migrations
from infrastructure.postgres import Connection

MIGRATIONS = Migrations("inbox", Path(__file__).parent / "migrations")
"""The tables of the inbox and the quarantine, which every projection's database has."""

OUR_SHAPE = "^evt_[0-9a-f]{12}8[0-9a-f]{3}[89ab][0-9a-f]{15}$"
"""Event ids that tell their time, as a regular expression. Ids of another shape are never forgotten, so none of
them is ever too old."""

CLAIM = """
    WITH horizon AS (
        SELECT coalesce(max(event_id), '') AS event_id FROM inbox_horizons WHERE consumer_name = %(consumer)s
    ), received AS (
        SELECT event_id, event_id < (SELECT event_id FROM horizon) AND event_id ~ %(our_shape)s AS is_too_old
        FROM unnest(%(event_ids)b::text[]) AS received (event_id)
    ), claimed AS (
        INSERT INTO processed_events (consumer_name, event_id)
        SELECT %(consumer)s, event_id FROM received WHERE NOT is_too_old ORDER BY event_id
        ON CONFLICT DO NOTHING
        RETURNING event_id
    )
    SELECT event_id, false FROM claimed UNION ALL SELECT event_id, true FROM received WHERE is_too_old
"""
# In order of id, because a claim waits for another transaction that holds the same id: two consumers with the
# same events in different order would wait for each other.
#
# The horizon is read in the claim itself. PostgreSQL locks the table before it takes the statement's snapshot, and
# keeps that lock until the transaction ends. Whoever moves the horizon first takes a lock that excludes ours
# (pruning.py): either it has committed, and we see where the horizon is now, or it waits for us.


class Claims(NamedTuple):
    """new: the ids that are ours to apply. too_old: those of which nobody can tell whether they were applied."""

    new: set[str]
    too_old: set[str]


def claim_or_tell(
    tx: Connection, consumer_name: str, event_ids: Iterable[str], meanwhile: Callable[[], None] | None = None
) -> Claims:
    """Claims, with this transaction, the ids that this consumer never processed before.

    An id that another transaction is claiming at this moment is waited for: it is ours when that one
    rolls back, and not ours when it commits. Claims become facts when `tx` commits, and not before.
    Needs READ COMMITTED. An id that occurs twice is claimed once. An id of ours below the consumer's horizon
    is never claimed: it may have been processed, and the proof was pruned.
    `meanwhile` is called while PostgreSQL works on it, as Connection.meanwhile says.
    """
    named = {"consumer": consumer_name, "event_ids": list(event_ids), "our_shape": OUR_SHAPE}
    with tx.meanwhile(meanwhile) if meanwhile else nullcontext():
        rows = tx.execute(CLAIM, named).fetchall()
    too_old = {event_id for event_id, is_too_old in rows if is_too_old}
    return Claims({event_id for event_id, _ in rows} - too_old, too_old)


def claim(tx: Connection, consumer_name: str, event_ids: Iterable[str]) -> set[str]:
    """The ids that are claimed, as `claim_or_tell` says."""
    return claim_or_tell(tx, consumer_name, event_ids).new
