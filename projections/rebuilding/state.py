"""What is known of a rebuild between its processes: rows beside the live tables, and one lock."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from psycopg import Connection

from infrastructure.migrate import Migrations
from infrastructure.pooler import require_direct
from projections.rebuilding.errors import RebuildRefused, Superseded
from projections.rebuilding.source import Partition
from projections.rebuilding.target import Target

MIGRATIONS = Migrations("rebuild", Path(__file__).parent / "migrations")
"""Brought to a database by the first rebuild there."""

# Of the session: however the process ends, the server lets go of it.
TRY_ALONE = "SELECT pg_try_advisory_lock(hashtextextended(%s, 7))"
NOT_ALONE = "SELECT pg_advisory_unlock(hashtextextended(%s, 7))"

READ = """
    SELECT state, run, version, returnable, other_schema, tables, components, started_at, swapped_at
    FROM rebuilds WHERE projection = %s
"""
BEGIN = """
    INSERT INTO rebuilds (projection, state, version, other_schema, tables, components)
    VALUES (%s, 'filling', %s, %s, %s, %s)
"""
BEGIN_PARTITIONS = """
    INSERT INTO rebuild_partitions (projection, worker, topic, partition, first_offset)
    SELECT %s, ordinality - 1, topic, partition, first_offset
    FROM unnest(%s::text[], %s::int[], %s::bigint[]) WITH ORDINALITY
        AS begun (topic, partition, first_offset, ordinality)
"""
PARTITIONS = "SELECT topic, partition, first_offset FROM rebuild_partitions WHERE projection = %s ORDER BY worker"
BEGIN_WORKERS = """
    INSERT INTO rebuild_workers (projection, worker, position)
    SELECT %s, ordinality - 1, position FROM unnest(%s::bigint[]) WITH ORDINALITY AS place (position, ordinality)
"""
# Of an advisory lock, pg_locks shows both halves.
IS_AT_WORK = """
    SELECT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1
          AND (classid::bigint << 32 | objid::bigint) = hashtextextended(%s, 7)
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
"""
EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
HOLD_RUN = "SELECT run FROM rebuilds WHERE projection = %s FOR UPDATE"
NEXT_RUN = "UPDATE rebuilds SET run = run + 1 WHERE projection = %s RETURNING run"
END = "DELETE FROM rebuilds WHERE projection = %s"
WORKERS = "SELECT position, applied FROM rebuild_workers WHERE projection = %s ORDER BY worker"
LOCK_WORKERS = "SELECT position FROM rebuild_workers WHERE projection = %s ORDER BY worker FOR UPDATE"
REMOVE_WORKERS = "DELETE FROM rebuild_workers WHERE projection = %s"
AHEAD = "SELECT event_id FROM rebuild_ahead WHERE projection = %s"
SET_AHEAD = "INSERT INTO rebuild_ahead (projection, event_id) SELECT %s, unnest(%s::text[])"
REMOVE_AHEAD = "DELETE FROM rebuild_ahead WHERE projection = %s"
SWAPPED = """
    UPDATE rebuilds
    SET state = 'swapped', swapped_at = clock_timestamp(), run = run + 1, version = %s, returnable = %s
    WHERE projection = %s
"""


class State(StrEnum):
    FILLING = "filling"
    """The other tables are being made from the events."""
    SWAPPED = "swapped"
    """The other tables are those that were live before the swap."""


@dataclass(frozen=True)
class Rebuild:
    """version: of the code that the other tables belong to. returnable: whether one can go back to them.

    tables: names of those that are there twice. run: which process may work at it.
    """

    state: State
    run: int
    version: int
    returnable: bool
    other_schema: str
    tables: Sequence[str]
    components: Sequence[str]
    started_at: datetime
    swapped_at: datetime | None


@dataclass(frozen=True)
class Progress:
    """positions: of the workers. applied: contracts that they have handed to the projection, in all."""

    positions: Sequence[int]
    applied: int


@contextmanager
def alone(connection: Connection, target: Target) -> Iterator[None]:
    """One process at a time works at a projection's other tables. Raises RebuildRefused, NeedsDirectConnection."""
    require_direct(connection, "a rebuild, for its lock,")
    if connection.execute(TRY_ALONE, (target.name,)).fetchone() != (True,):
        raise RebuildRefused(target.name, "another process rebuilds it; `counterfoil rebuild status` shows how far")
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(NOT_ALONE, (target.name,))


def read(connection: Connection, projection: str) -> Rebuild | None:
    row = connection.execute(READ, (projection,)).fetchone()
    return Rebuild(State(row[0]), *row[1:]) if row else None


def find(connection: Connection, projection: str) -> Rebuild | None:
    """As `read`, also where there has never been a rebuild."""
    return read(connection, projection) if _exists(connection, "rebuilds") else None


def partitions(connection: Connection, projection: str) -> list[Partition]:
    """Those that it reads; none when its events come from the store, or where there is no rebuild."""
    if not _exists(connection, "rebuild_partitions"):
        return []
    return [Partition(*row) for row in connection.execute(PARTITIONS, (projection,))]


def is_at_work(connection: Connection, projection: str) -> bool:
    """Whether a process works at its other tables at this moment."""
    return connection.execute(IS_AT_WORK, (projection,)).fetchone() == (True,)


def begin(
    tx: Connection, target: Target, tables: Sequence[str], workers: int, partitions: Sequence[Partition] = ()
) -> None:
    """From position 0 of the store, or with the first record of each partition."""
    components = [each.component for each in target.own_migrations]
    values = (target.name, target.projection.version, target.other_schema, list(tables), components)
    tx.execute(BEGIN, values)
    positions = [each.first for each in partitions] or [0] * workers
    tx.execute(BEGIN_WORKERS, (target.name, positions))
    columns = [list(column) for column in zip(*partitions, strict=True)] or [[], [], []]
    tx.execute(BEGIN_PARTITIONS, (target.name, *columns))


def next_run(connection: Connection, projection: str) -> int:
    """The number of this run: what an earlier process still wants to write is refused from now on."""
    (run,) = connection.execute(NEXT_RUN, (projection,)).fetchone() or (0,)
    return int(run)


def hold_run(tx: Connection, projection: str, run: int) -> None:
    """Until the transaction ends, no other process takes the rebuild over. Raises Superseded when one has."""
    if tx.execute(HOLD_RUN, (projection,)).fetchone() != (run,):
        raise Superseded(projection)


def progress(connection: Connection, projection: str) -> Progress:
    rows = connection.execute(WORKERS, (projection,)).fetchall()
    return Progress([position for position, _ in rows], sum(applied for _, applied in rows))


def lock_positions(tx: Connection, projection: str) -> list[int]:
    """By worker. Until the transaction ends, nobody changes the other tables."""
    return [position for (position,) in tx.execute(LOCK_WORKERS, (projection,))]


def ahead(connection: Connection, projection: str) -> set[str]:
    """Ids of events beyond the positions that the other tables hold already."""
    return {event_id for (event_id,) in connection.execute(AHEAD, (projection,))}


def swapped(
    tx: Connection, projection: str, version: int, positions: Sequence[int], ahead: Sequence[str], returnable: bool
) -> None:
    """The other tables are from now on of this version, with these positions by shard and these events beyond them."""
    tx.execute(REMOVE_WORKERS, (projection,))
    tx.execute(BEGIN_WORKERS, (projection, list(positions)))
    tx.execute(REMOVE_AHEAD, (projection,))
    tx.execute(SET_AHEAD, (projection, list(ahead)))
    tx.execute(SWAPPED, (version, returnable, projection))


def end(tx: Connection, projection: str) -> None:
    tx.execute(END, (projection,))


def _exists(connection: Connection, table: str) -> bool:
    return connection.execute(EXISTS, (table,)).fetchone() == (True,)
