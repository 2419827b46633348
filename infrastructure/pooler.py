"""Connection poolers such as pgbouncer, and what does not work through them.

In transaction mode each transaction may run in another session of the server. What belongs to a session gets
lost there or stays behind for a stranger: LISTEN, session locks, settings, prepared statements by name.
"""

from dataclasses import dataclass
from typing import Any

import psycopg

from domain.errors import CounterfoilError


@dataclass(eq=False)
class NeedsDirectConnection(CounterfoilError):
    """A pooler stands between this process and PostgreSQL, in whatever mode. Nothing was changed.

    what: it cannot do without a session of its own. What to do: give this process a connection string with
    PostgreSQL's own host and port. Processes that only place orders or run projections may keep the pooler.
    """

    what: str

    def __str__(self) -> str:
        return (
            f"There is a connection pooler in front of PostgreSQL, and {self.what} needs a session of its own. "
            "Give this process a connection string with PostgreSQL's own host and port."
        )


BACKEND = "SELECT pg_backend_pid()"


def behind_a_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Whether the session is not with the server itself. One round trip.

    For requests to cancel, the server names its process when a session begins. A pooler cannot tell which
    process will serve whom, and names one of its own invention.
    """
    row = connection.execute(BACKEND).fetchone()
    return row is not None and row[0] != connection.info.backend_pid


def require_direct(connection: psycopg.Connection[Any], what: str) -> None:
    """Raises NeedsDirectConnection. what: names what cannot work, such as "a relay"."""
    if behind_a_pooler(connection):
        raise NeedsDirectConnection(what)
