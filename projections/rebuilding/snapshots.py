"""Readers whose snapshot is older than the rebuilt rows would see the new tables without them."""

from threading import Event
from time import monotonic

from psycopg import Connection

from infrastructure.backoff import Backoff
from projections.rebuilding.errors import RebuildRefused

# Of transactions below it, every one has ended.
NEXT_TRANSACTION = "SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::numeric % 4294967296)::text"

OLDER = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND backend_xmin IS NOT NULL AND age(backend_xmin) > age(%s::text::xid)
    ORDER BY pid
"""


def wait_for_old_snapshots(connection: Connection, projection: str, stop: Event, within: float) -> None:
    """Until each transaction of this database sees what is committed now. Only long ones are worth speaking of.

    Raises RebuildRefused after `within` seconds. (What other roles do, a role sees as a member of pg_monitor.)
    """
    (now,) = connection.execute(NEXT_TRANSACTION).fetchone() or ("3",)
    deadline, backoff = monotonic() + within, Backoff(base=0.02, cap=1.0)
    while pids := [pid for (pid,) in connection.execute(OLDER, (now,))]:
        if monotonic() > deadline:
            named = ", ".join(map(str, pids))
            reason = (
                f"transactions from before the rebuild are open (pid {named}), and would find the new tables "
                "incomplete: end them, then run the same command again"
            )
            raise RebuildRefused(projection, reason)
        if backoff.wait(stop):
            return
