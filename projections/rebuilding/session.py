"""One process's work at a projection's other tables, step by step; rebuild.py says in which order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from time import monotonic

from psycopg import Connection, sql
from psycopg.errors import DependentObjectsStillExist

from infrastructure.backoff import Backoff
from infrastructure.migrate import migrate
from projections.rebuilding import schema, state
from projections.rebuilding.carry import carry
from projections.rebuilding.differences import Differences
from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.exchange import existing
from projections.rebuilding.fill import Filler, Place
from projections.rebuilding.from_kafka import KafkaSides
from projections.rebuilding.from_store import StoreSides
from projections.rebuilding.keeping import copy_indexes, what_would_be_lost
from projections.rebuilding.sides import Sides
from projections.rebuilding.snapshots import wait_for_old_snapshots
from projections.rebuilding.source import Source
from projections.rebuilding.state import Progress, Rebuild
from projections.rebuilding.swap import Swap, Swapped
from projections.rebuilding.target import Target
from projections.rebuilding.workers import fill

CLOSE = 200
"""Events: when a page had no more than these, the other tables have caught up with the store."""

USUAL_LAG = 5.0
"""Seconds in which a live runner that keeps up applies what the rebuild has just read."""

Tell = Callable[[str, Progress, int], None]
"""What is done now, how far the workers are, and the highest position stored."""


@dataclass(frozen=True)
class Session:
    """Nobody else works at these tables while there is one. connection: to the live tables."""

    target: Target
    connection: Connection
    source: Source
    live: str

    def begin(self, workers: int) -> None:
        """Makes the other tables, empty but for what is carried over. Raises RebuildRefused."""
        if workers > 1 and not self.target.projection.rebuilt_in_parallel:
            reason = "its events depend on each other's order, so that it takes one worker (rebuilt_in_parallel)"
            raise RebuildRefused(self.target.name, reason)
        tables = schema.create(self.target, self.connection)
        if lost := self._would_be_lost(tables):
            schema.drop(self.target, self.connection, [])
            reason = f"a swap would lose what hangs on the live tables: {', '.join(lost)}. Remove it, and make it anew"
            raise RebuildRefused(self.target.name, f"{reason} afterwards")
        with self.connection.transaction():
            state.begin(self.connection, self.target, tables, workers)
            carry(self.target, self.connection, self.live)

    def fill(self, stop: Event, tell: Tell) -> None:
        """Everything that is stored, with the workers that it was begun with. Raises as workers.fill does."""
        run = state.next_run(self.connection, self.target.name)
        workers = len(self._progress().positions)
        places = [Place(self.live, run, worker, workers) for worker in range(workers)]
        fill(self.target, places, stop, lambda: self.tell("filling", tell))

    def finish(self) -> None:
        """What is better done with the rows there: indexes, and statistics for the readers' first queries."""
        rebuild = self.rebuild
        both = existing(self.connection, rebuild.other_schema, rebuild.tables)
        copy_indexes(self.connection, self.live, rebuild.other_schema, both)
        for table in both:
            self.connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(rebuild.other_schema, table)))

    def compare(self, stop: Event, patience: float, tell: Tell) -> Differences:
        """Once the live runner has come as far as the rebuild, or patience is over."""
        self.tell("comparing", tell)
        self.catch_up()
        self._wait_for_the_live_runner(self.sides(self._reached()), stop, patience)
        self.catch_up()
        return Differences.find(self.target, self.connection, self.live, self.rebuild.tables)

    def swap(self, differences: Differences | None, stop: Event, patience: float, tell: Tell) -> Swapped | None:
        """differences: those that must be gone by then; None to accept them all. None when told to stop."""
        self.tell("swapping", tell)
        self.catch_up()
        wait_for_old_snapshots(self.connection, self.target.name, stop, patience)
        sides = self.sides(self._reached())
        self._wait_for_the_live_runner(sides, stop, min(patience, USUAL_LAG))
        swap = Swap(self.target, self.rebuild, self.live, sides, self.source, self.catch_up, differences)
        return swap.run(stop, patience)

    def catch_up(self) -> None:
        """In this process, with the workers' places, until little is left; and what was put in by hand since."""
        run, workers = self.rebuild.run, len(self._progress().positions)
        with self.target.connect_other() as other:
            for worker in range(workers):
                filler = Filler(self.target, Place(self.live, run, worker, workers), self.source, other)
                while filler.step() > CLOSE:
                    pass
        carry(self.target, self.connection, self.live)

    def drop(self) -> None:
        """The other tables, and all that is known of them. Raises RebuildRefused when something else hangs on them."""
        rebuild = self.rebuild
        both = existing(self.connection, rebuild.other_schema, rebuild.tables)
        try:
            with self.connection.transaction():
                schema.drop(self.target, self.connection, both)
                state.end(self.connection, self.target.name)
        except DependentObjectsStillExist:
            reason = f"a view or a foreign key outside of {rebuild.other_schema} hangs on the tables there: remove it"
            raise RebuildRefused(self.target.name, reason) from None

    def tell(self, doing: str, tell: Tell) -> None:
        tell(doing, self._progress(), self.source.reader.highest_position())

    def sides(self, reached: int = 0) -> Sides:
        """reached: how far the other tables have come."""
        if self.target.is_fed_by_the_store:
            return StoreSides(self.target, self.live, reached)
        return KafkaSides(self.target, self.live)

    @property
    def rebuild(self) -> Rebuild:
        found = state.read(self.connection, self.target.name)
        if found is None:
            raise RebuildRefused(self.target.name, "there is no rebuild")
        return found

    def _progress(self) -> Progress:
        return state.progress(self.connection, self.target.name)

    def _reached(self) -> int:
        return max(self._progress().positions)

    def _live_version(self) -> int:
        return self.sides().live_version(self.connection)

    def _would_be_lost(self, tables: Sequence[str]) -> list[str]:
        changed = self._live_version() != self.target.projection.version
        return what_would_be_lost(self.connection, self.live, self.target.other_schema, tables, changed)

    def _wait_for_the_live_runner(self, sides: Sides, stop: Event, patience: float) -> None:
        deadline, backoff = monotonic() + patience, Backoff(base=0.05, cap=0.5)
        while sides.waiting(self.connection) and monotonic() < deadline and not backoff.wait(stop):
            pass


@contextmanager
def session(target: Target) -> Iterator[Session]:
    """Raises RebuildRefused while another process has one, NeedsDirectConnection, psycopg.Error."""
    migrate(target.dsn, [state.MIGRATIONS])
    with target.connect() as connection, state.alone(connection, target), target.connect_store() as store:
        yield Session(target, connection, Source(target, store), schema.live_schema(connection))
