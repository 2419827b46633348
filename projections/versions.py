"""Which code may write into a projection's tables: only that of the version whose rows they hold.

A projection that is fed by Kafka says its version at the beginning of each transaction. (One that is fed by the
store need not: the version stands in the row of its position.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import Connection

from domain.errors import CounterfoilError

HOLD = "SELECT hold_projection_version(%s, %s)"

# Of the session: a swap behind it may ask Kafka or another database before its transaction begins.
FENCE = "SELECT pg_advisory_lock(hashtextextended(%s, 6))"
LIFT = "SELECT pg_advisory_unlock(hashtextextended(%s, 6))"
LIMITS = "SELECT set_config('lock_timeout', %s, false), set_config('idle_session_timeout', %s, false)"

LONGEST_SILENCE = 30.0
"""Seconds after which a process that stands still behind the fence loses its session, and writers go on."""

READ = "SELECT version FROM projection_versions WHERE projection = %s"

WRITE = """
    INSERT INTO projection_versions (projection, version) VALUES (%s, %s)
    ON CONFLICT (projection) DO UPDATE SET version = excluded.version, since = clock_timestamp()
"""


@dataclass(eq=False)
class OtherVersion(CounterfoilError):
    """The projection's tables belong to code of another version than this process runs. Nothing was applied.

    What to do: older than the tables, this process has done its duty: stop it. Newer, it waits for the rebuild
    that makes its tables, and goes on by itself after the swap.
    """

    projection: str
    live: int
    ours: int

    def __str__(self) -> str:
        advice = "stop this process" if self.ours < self.live else "run `counterfoil rebuild` with the new code"
        return f"The tables of {self.projection!r} are of version {self.live}, this code is of {self.ours}: {advice}."


def hold(tx: Connection, projection: str, version: int) -> None:
    """To be called first in each transaction that writes. Until it ends, the version stays.

    A projection that has never said its version is of this one from now on. One round trip.
    Raises OtherVersion; the transaction is then to be rolled back.
    """
    row = tx.execute(HOLD, (projection, version), prepare=True).fetchone()
    if row is not None and row[0] != version:
        raise OtherVersion(projection, row[0], version)


@contextmanager
def fence(connection: Connection, projection: str, within: float) -> Iterator[None]:
    """Waits for the transactions that hold a version, and keeps new ones waiting until the block ends.

    connection: in autocommit mode, for this alone; no transaction need be open in the block, and one that is, is
    committed before the fence is lifted. Raises LockNotAvailable after `within` seconds.
    """
    connection.execute(LIMITS, (f"{round(within * 1000)}", f"{round(LONGEST_SILENCE * 1000)}"))
    connection.execute(FENCE, (projection,))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(LIFT, (projection,))


def read(connection: Connection, projection: str) -> int | None:
    """None when nobody has ever written."""
    row = connection.execute(READ, (projection,)).fetchone()
    return row[0] if row else None


def write(tx: Connection, projection: str, version: int) -> None:
    """From the end of this transaction on, only this version may write. To be called behind the fence."""
    tx.execute(WRITE, (projection, version))
