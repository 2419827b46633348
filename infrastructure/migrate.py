"""Brings a database to the schema that this code needs: numbered SQL files, each applied once, by one node at a time.

A file is named `NNNN_what_it_does.sql` and runs in one transaction. When its first line is
`-- no transaction` (for CREATE INDEX CONCURRENTLY) its statements run one by one, so it must be safe to
run again from its start: begin with DROP INDEX CONCURRENTLY IF EXISTS, which also clears away the invalid
index of an interrupted run. In such a file a statement ends with a semicolon at the end of a line.

A statement that cannot get its lock fails after `LOCK_SECONDS` instead of making everybody queue behind
it; its file is then rolled back and tried again. Statements that lock a busy table belong in files of
their own. The connection must be direct, not through a pooler in transaction mode.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from psycopg.errors import LockNotAvailable

from domain.errors import CounterfoilError
from infrastructure.backoff import Backoff
from infrastructure.migration_files import STORE_MIGRATIONS, MigrationFile, Migrations, read_files
from infrastructure.pooler import require_direct
from infrastructure.postgres import Connection, Timeouts, connect

__all__ = [
    "STORE_MIGRATIONS",
    "Applied",
    "MigrationChanged",
    "Migrations",
    "SchemaBusy",
    "SchemaNewer",
    "SchemaOutdated",
    "State",
    "check",
    "migrate",
    "status",
]

logger = logging.getLogger(__name__)

LOCK_SECONDS = 2.0
"""Longest time that a migration makes others queue behind it, per statement."""

PATIENCE_SECONDS = 120.0
"""Longest time to try for one file, or to wait for another node that migrates."""

_NAME = "counterfoil migrate"

_TIMEOUTS = Timeouts(lock=LOCK_SECONDS, statement=3_600.0)

_KEY = 0x636F756E74657266
"""Of the advisory lock: one node at a time applies migrations to a database."""


@dataclass(eq=False)
class SchemaOutdated(CounterfoilError):
    """The database lacks migrations that this code needs. missing: (component, file name) of each."""

    missing: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        names = ", ".join(f"{component}/{name}" for component, name in self.missing)
        return f"The database lacks {names}. Run `counterfoil db migrate`."


@dataclass(eq=False)
class SchemaNewer(CounterfoilError):
    """The database has migrations that this code does not know. Nothing was changed."""

    component: str
    versions: tuple[int, ...]

    def __str__(self) -> str:
        return f"The database has newer migrations of {self.component} {self.versions}. Run the newer code."


@dataclass(eq=False)
class MigrationChanged(CounterfoilError):
    """A file was edited after it had been applied here, so that nobody knows what the database has."""

    component: str
    name: str

    def __str__(self) -> str:
        return f"{self.component}/{self.name} was changed after it was applied. Restore it; add a new file instead."


@dataclass(eq=False)
class SchemaBusy(CounterfoilError):
    """A lock was not to be had, or another node was migrating all the time. Nothing is half done."""

    seconds: float

    def __str__(self) -> str:
        return f"Other sessions held locks for {self.seconds:g} s. End long transactions, then migrate again."


@dataclass(frozen=True)
class Applied:
    component: str
    version: int
    name: str


@dataclass(frozen=True)
class State:
    """One migration file and when it was applied, None for not yet."""

    component: str
    version: int
    name: str
    applied_at: datetime | None


CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        component  text        NOT NULL,
        version    integer     NOT NULL,
        name       text        NOT NULL,
        checksum   text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (component, version)
    )
"""
TABLE_EXISTS = "SELECT to_regclass('schema_migrations') IS NOT NULL"
APPLIED = "SELECT version, name, checksum, applied_at FROM schema_migrations WHERE component = %s ORDER BY version"
RECORD = "INSERT INTO schema_migrations (component, version, name, checksum) VALUES (%s, %s, %s, %s)"


def migrate(dsn: str, migrations: Sequence[Migrations], patience: float = PATIENCE_SECONDS) -> list[Applied]:
    """Applies what is missing, in the order of the components and versions; returns what it applied.

    Safe to repeat, to interrupt and to run on several nodes at once. `patience`: longest wait in seconds
    for locks, per file. Raises NeedsDirectConnection, SchemaNewer, MigrationChanged, SchemaBusy, psycopg.Error.
    """
    files = {each.component: read_files(each) for each in migrations}
    with connect(dsn, application_name=_NAME, timeouts=_TIMEOUTS) as connection:
        require_direct(connection, "a migration, for its lock,")
        with _alone(connection, patience):
            return _apply_pending(connection, files, patience)


def _apply_pending(connection: Connection, files: dict[str, list[MigrationFile]], patience: float) -> list[Applied]:
    connection.execute(CREATE_TABLE)
    pending = [file for component, of in files.items() for file in _pending(connection, component, of)]
    for file in pending:
        _apply_patiently(connection, file, patience)
    return [Applied(file.component, file.version, file.name) for file in pending]


def status(dsn: str, migrations: Sequence[Migrations]) -> list[State]:
    """Every file with the time it was applied. Changes nothing. Raises SchemaNewer, MigrationChanged."""
    states = []
    with connect(dsn, application_name=_NAME) as connection:
        for each in migrations:
            files = read_files(each)
            applied = _applied(connection, each.component)
            _refuse_the_unknown(each.component, files, applied)
            _refuse_changed(files, applied)
            states += [_state(file, applied) for file in files]
    return states


def check(dsn: str, migrations: Sequence[Migrations]) -> None:
    """For the start of a process. Raises SchemaOutdated or MigrationChanged.

    A database that is newer than the code is accepted with a warning: while new code is rolled out, old
    code must be able to restart.
    """
    missing: list[tuple[str, str]] = []
    with connect(dsn, application_name=_NAME) as connection:
        for each in migrations:
            files = read_files(each)
            applied = _applied(connection, each.component)
            _refuse_changed(files, applied)
            missing += [(file.component, file.name) for file in files if file.version not in applied]
            if unknown := set(applied) - {file.version for file in files}:
                logger.warning(
                    "the database is newer than the code",
                    extra={"component": each.component, "versions": sorted(unknown)},
                )
    if missing:
        raise SchemaOutdated(tuple(missing))


_Row = tuple[str, str, datetime]


def _applied(connection: Connection, component: str) -> dict[int, _Row]:
    (exists,) = connection.execute(TABLE_EXISTS).fetchone() or (False,)
    rows = connection.execute(APPLIED, (component,)).fetchall() if exists else []
    return {version: (name, checksum, applied_at) for version, name, checksum, applied_at in rows}


def _pending(connection: Connection, component: str, files: list[MigrationFile]) -> list[MigrationFile]:
    applied = _applied(connection, component)
    _refuse_the_unknown(component, files, applied)
    _refuse_changed(files, applied)
    return [file for file in files if file.version not in applied]


def _refuse_the_unknown(component: str, files: list[MigrationFile], applied: dict[int, _Row]) -> None:
    unknown = sorted(set(applied) - {file.version for file in files})
    if unknown:
        raise SchemaNewer(component, tuple(unknown))


def _refuse_changed(files: list[MigrationFile], applied: dict[int, _Row]) -> None:
    for file in files:
        if file.version in applied and applied[file.version][1] != file.checksum:
            raise MigrationChanged(file.component, file.name)


def _state(file: MigrationFile, applied: dict[int, _Row]) -> State:
    row = applied.get(file.version)
    return State(file.component, file.version, file.name, row[2] if row else None)


@contextmanager
def _alone(connection: Connection, patience: float) -> Iterator[None]:
    """One node at a time.

    The lock is asked for again and again, not waited for: whoever waits inside a statement holds a
    snapshot, and CREATE INDEX CONCURRENTLY in the node that has the lock waits for all snapshots to end.
    """
    deadline, backoff = time.monotonic() + patience, Backoff(base=0.05, cap=0.5)
    while connection.execute("SELECT pg_try_advisory_lock(%s)", (_KEY,)).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise SchemaBusy(patience)
        time.sleep(backoff.next_delay())
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_KEY,))


def _apply_patiently(connection: Connection, file: MigrationFile, patience: float) -> None:
    """Between two attempts those who queued behind the first get their turn."""
    deadline, backoff = time.monotonic() + patience, Backoff(base=0.5, cap=5.0)
    while True:
        try:
            _apply(connection, file, patience)
        except LockNotAvailable:
            if time.monotonic() > deadline:
                raise SchemaBusy(patience) from None
            logger.warning("a migration waits for a lock", extra={"component": file.component, "migration": file.name})
            time.sleep(backoff.next_delay())
        else:
            logger.info("migration applied", extra={"component": file.component, "migration": file.name})
            return


def _apply(connection: Connection, file: MigrationFile, patience: float) -> None:
    record = (file.component, file.version, file.name, file.checksum)
    if file.in_transaction:
        with connection.transaction():
            connection.execute(file.text.encode())
            connection.execute(RECORD, record)
        return
    # Building an index concurrently waits for old transactions to end, and nobody queues behind that wait.
    connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{round(patience * 1000)}",))
    for statement in file.statements:
        connection.execute(statement.encode())
    connection.execute("RESET lock_timeout")
    connection.execute(RECORD, record)
