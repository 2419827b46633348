"""Random schedules of writers over several real connections, with reads in between at any step.

One thread drives all connections, so a schedule always runs the same way: a failing one is printed by
hypothesis, made small, and can be run again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.event_reader import EventReader
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import Connection
from tests.integration.test_event_reader_load import TrustingReader
from tests.support.stored_events import INSERT, autocommit

INSERT_SELECT = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT unnest(%s::text[]), 1, 'selected', '{}'
"""
COPY = "COPY stored_events (originator_id, originator_version, topic, state) FROM STDIN"
COMMITTED = "SELECT position FROM stored_events WHERE position > %s ORDER BY position"
OWN = "SELECT position FROM stored_events WHERE originator_id = ANY(%s) ORDER BY position"

WRITERS = 3
LIMITS = (1, 2, 3, 1_000, 1_000)

Step = tuple[str, int, int]
"""What is done, by which writer, and a number: how many events, or which limit of a read, or which transaction."""

ALWAYS = (*["insert"] * 6, *["insert_select", "copy"] * 2, "burn", *["read"] * 10, "new_reader")
BETWEEN = ("begin",) * 15
WITHIN = (*["commit", "rollback", "prepare"] * 2, "savepoint")
AFTER_SAVEPOINT = ("rollback_to",)
PREPARED = ("commit_prepared", "rollback_prepared")


@st.composite
def schedules(draw: st.DrawFn) -> list[Step]:
    """Only steps that do something at their place: an action for nothing would dilute the search."""
    steps: list[Step] = []
    opened: set[int] = set()
    saved: set[int] = set()
    prepared = 0
    for _ in range(draw(st.integers(1, 100))):
        writer, number = draw(st.integers(0, WRITERS - 1)), draw(st.integers(0, len(LIMITS) - 1))
        possible = ALWAYS + (WITHIN if writer in opened else BETWEEN)
        possible += (AFTER_SAVEPOINT if writer in saved else ()) + (PREPARED if prepared else ())
        action = draw(st.sampled_from(possible))
        steps.append((action, writer, number))
        if action == "begin":
            opened.add(writer)
        elif action == "savepoint":
            saved.add(writer)
        elif action in WITHIN:
            opened.discard(writer)
            saved.discard(writer)
        prepared += (action == "prepare") - (action in PREPARED)
    return steps


explored = settings(
    max_examples=100, deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)


class Writer:
    """A session, and what its open transaction may still bring. Outside a transaction each statement commits."""

    def __init__(self, session: Connection) -> None:
        self.session = session
        self.pid: int | None = session.info.backend_pid
        self.forget()

    def forget(self) -> None:
        self.open = self.has_written = False
        self.pending: list[int] = []
        self.savepoint: int | None = None


class Store:
    """A database of a server that allows prepared transactions, and connections that all schedules share."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self.writers = [Writer(stack.enter_context(autocommit(dsn))) for _ in range(WRITERS)]
        self.observer = stack.enter_context(autocommit(dsn))
        self.reading = stack.enter_context(autocommit(dsn))
        self.names = count()


class Run:
    """One schedule, and what must be true at each read of it."""

    def __init__(self, store: Store, make_reader: Callable[[Connection], EventReader]) -> None:
        self.store, self.make_reader = store, make_reader
        self.prepared: dict[str, Writer] = {}
        self.start = self.after = self._first_position()
        self.delivered: list[int] = []
        self.new_reader(0, 0)

    def follow(self, schedule: list[Step]) -> None:
        try:
            for action, writer, number in schedule:
                getattr(self, action)(writer, number)
            self.end_all("COMMIT")
            while self.read(0, 1):
                pass
            assert self.delivered == self.committed_after(self.start)
        finally:
            self.end_all("ROLLBACK")

    def committed_after(self, position: int) -> list[int]:
        return [found for (found,) in self.store.observer.execute(COMMITTED, (position,))]

    def _first_position(self) -> int:
        """Of an event that nobody is asked about: what earlier schedules left is below it."""
        names = self._names(1)
        self.store.observer.execute(INSERT, names)
        (found,) = self.store.observer.execute(OWN, (names,))
        return int(found[0])

    # --- Reading --------------------------------------------------------------------------------------

    def new_reader(self, _: int, __: int) -> None:
        """As after a restart: the position is kept, what was known about gaps is not."""
        self.reader = self.make_reader(self.store.reading)

    def read(self, _: int, number: int) -> list[int]:
        limit, committed = LIMITS[number], self.committed_after(self.after)
        page = self.reader.read(self.after, limit)
        positions = [event.position for event in page.events]
        self.delivered += positions
        self.after = max([self.after, *positions])

        writing = [each for each in (*self.store.writers, *self.prepared.values()) if each.has_written]
        unsettled = [position for each in writing for position in each.pending]
        assert positions == committed[: len(positions)], "in order, none left out, none twice"
        assert len(positions) <= limit
        assert all(position > self.after for position in unsettled) or not positions, "none before an unsettled one"
        if page.settled:
            assert len(positions) == min(limit, len(committed)), "settled, yet something is kept back"
        else:
            assert page.held_by, "somebody holds it back"
            assert {each.pid for each in page.held_by} <= {each.pid for each in writing}
        return positions

    # --- Writing --------------------------------------------------------------------------------------

    def insert(self, writer: int, _: int) -> None:
        (name,) = names = self._names(1)
        self._writer(writer).session.execute(INSERT, (name,))
        self._written(writer, names)

    def insert_select(self, writer: int, number: int) -> None:
        names = self._names(number + 1)
        self._writer(writer).session.execute(INSERT_SELECT, (names,))
        self._written(writer, names)

    def copy(self, writer: int, number: int) -> None:
        names = self._names(number + 1)
        with self._writer(writer).session.cursor().copy(COPY) as copy:
            for name in names:
                copy.write_row((name, 1, "copied", b"{}"))
        self._written(writer, names)

    def burn(self, writer: int, number: int) -> None:
        """Positions that never come, drawn in a transaction or inside one that goes on."""
        session = self._writer(writer).session
        with session.transaction(force_rollback=True):
            session.execute(INSERT_SELECT, (self._names(number + 1),))

    # --- Transactions ---------------------------------------------------------------------------------

    def begin(self, writer: int, _: int) -> None:
        self._writer(writer).session.execute("BEGIN")
        self._writer(writer).open = True

    def savepoint(self, writer: int, _: int) -> None:
        """A second one of the same name takes the place of the first."""
        each = self._writer(writer)
        each.session.execute("SAVEPOINT here")
        each.savepoint = len(each.pending)

    def rollback_to(self, writer: int, _: int) -> None:
        each = self._writer(writer)
        each.session.execute("ROLLBACK TO SAVEPOINT here")
        del each.pending[each.savepoint :]

    def commit(self, writer: int, _: int) -> None:
        self._end(self._writer(writer), "COMMIT")

    def rollback(self, writer: int, _: int) -> None:
        self._end(self._writer(writer), "ROLLBACK")

    def prepare(self, writer: int, _: int) -> None:
        """The transaction goes on without its session, under a name of its own."""
        each, name = self._writer(writer), f"transaction {next(self.store.names)}"
        each.session.execute(f"PREPARE TRANSACTION '{name}'".encode())
        self.prepared[name] = left = Writer(each.session)
        left.pid, left.pending, left.has_written = None, each.pending, each.has_written
        each.forget()

    def commit_prepared(self, _: int, number: int) -> None:
        self._end_prepared(number, "COMMIT")

    def rollback_prepared(self, _: int, number: int) -> None:
        self._end_prepared(number, "ROLLBACK")

    def end_all(self, how: str) -> None:
        for each in self.store.writers:
            self._end(each, how)
        while self.prepared:
            self._end_prepared(0, how)

    def _end(self, each: Writer, how: str) -> None:
        if each.open:
            each.session.execute(how.encode())
        each.forget()

    def _end_prepared(self, number: int, how: str) -> None:
        name = list(self.prepared)[number % len(self.prepared)]
        self.store.observer.execute(f"{how} PREPARED '{name}'".encode())
        del self.prepared[name]

    def _writer(self, number: int) -> Writer:
        return self.store.writers[number]

    def _names(self, number: int) -> list[str]:
        return [f"{next(self.store.names)}" for _ in range(number)]

    def _written(self, writer: int, names: list[str]) -> None:
        each = self._writer(writer)
        if each.open:
            each.has_written = True
            each.pending += [position for (position,) in each.session.execute(OWN, (names,))]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with EmbeddedPostgres() as server, ExitStack() as stack:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET max_prepared_transactions = 10")
            admin.execute("ALTER SYSTEM SET fsync = off")
        server.restart()
        dsn = server.create_database("store")
        migrate(dsn, STORE_MIGRATIONS)
        yield Store(dsn, stack)


@explored
@pytest.mark.timeout(600)  # a failing schedule takes minutes to be made small
@given(schedule=schedules())
def test_each_committed_event_is_read_exactly_once_in_order_whatever_the_schedule(
    store: Store, schedule: list[Step]
) -> None:
    Run(store, EventReader).follow(schedule)


def test_the_same_property_fails_for_a_reader_without_the_proof(store: Store) -> None:
    """The check can fail: the first schedules that come catch a reader that trusts what it sees."""

    @settings(explored, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(schedule=schedules())
    def explore(schedule: list[Step]) -> None:
        Run(store, TrustingReader).follow(schedule)

    with pytest.raises(AssertionError, match=r"unsettled|left out"):
        explore()
