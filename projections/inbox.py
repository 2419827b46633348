"""The inbox: of all the times an event is delivered, exactly one is claimed, together with its effect."""

from collections.abc import Iterable
from pathlib import Path

from psycopg import Connection

from infrastructure.migrate import Migrations

MIGRATIONS = Migrations("inbox", Path(__file__).parent / "migrations")
"""The tables of the inbox and the quarantine, which every projection's database has."""

CLAIM = """
    INSERT INTO processed_events (consumer_name, event_id)
    SELECT %s, event_id FROM unnest(%s::text[]) AS received (event_id) ORDER BY event_id
    ON CONFLICT DO NOTHING
    RETURNING event_id
"""
# In order of id, because a claim waits for another transaction that holds the same id: two consumers with the
# same events in different order would wait for each other.


def claim(tx: Connection, consumer_name: str, event_ids: Iterable[str]) -> set[str]:
    """The ids that this consumer claims with this transaction: those that it never processed before.

    An id that another transaction is claiming at this moment is waited for: it is ours when that one
    rolls back, and not ours when it commits. Claims become facts when `tx` commits, and not before.
    Needs READ COMMITTED. An id that occurs twice is claimed once.
    """
    return {event_id for (event_id,) in tx.execute(CLAIM, (consumer_name, list(event_ids)))}
