"""One process's work at a projection's other tables, step by step; rebuild.py says in which order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
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
from projections.rebuilding.fill import Filler
from projections.rebuilding.from_kafka import KafkaSides
from projections.rebuilding.from_store import StoreSides
from projections.rebuilding.keeping import copy_indexes, what_would_be_lost
from projections.rebuilding.opening import opened
from projections.rebuilding.sides import Sides
from projections.rebuilding.snapshots import wait_for_old_snapshots
from projections.rebuilding.source import Partition, Place, Source
from projections.rebuilding.state import Progress, Rebuild
from projections.rebuilding.stored import StoreSource
from projections.rebuilding.swap import Swap, Swapped
from projections.rebuilding.target import Target
from projections.rebuilding.workers import fill

USUAL_LAG = 5.0
"""Seconds in which a live runner that keeps up applies what the rebuild has just read."""

Tell = Callable[[str, int, int], None]
"""What is done now, how much of it, and of how much: positions of the store, or records of topics."""


@dataclass(frozen=True)
class Holding:
    """Nobody else works at these tables while there is one. connection: to the live tables, whose schema is `live`."""

    target: Target
    connection: Connection
    live: str

    @property
    def rebuild(self) -> Rebuild:
        found = state.read(self.connection, self.target.name)
        if found is None:
            raise RebuildRefused(self.target.name, "there is no rebuild")
        return found

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


@dataclass(frozen=True)
class Session(Holding):
    """source: where the contracts come from."""

    source: Source

    def begin(self, workers: int) -> None:
        """Makes the other tables, empty but for what is carried over. Raises RebuildRefused."""
        if workers > 1 and not self.target.projection.rebuilt_in_parallel:
            reason = "its events depend on each other's order, so that it takes one worker (rebuilt_in_parallel)"
            raise RebuildRefused(self.target.name, reason)
        if workers > 1 and self.source.partitions:
            raise RebuildRefused(self.target.name, "from topics it takes one worker")
        tables = schema.create(self.target, self.connection, self.source.repeats)
        if lost := self._would_be_lost(tables):
            schema.drop(self.target, self.connection, [])
            reason = f"a swap would lose what hangs on the live tables: {', '.join(lost)}. Remove it, and make it anew"
            raise RebuildRefused(self.target.name, f"{reason} afterwards")
        with self.connection.transaction():
            state.begin(self.connection, self.target, tables, workers, self.source.partitions)
            carry(self.target, self.connection, self.live)

    def fill(self, stop: Event, tell: Tell) -> None:
        """Everything that is stored, with the workers that it was begun with. Raises as workers.fill does."""
        run = state.next_run(self.connection, self.target.name)
        fill(self.target, self._places(run), stop, lambda: self.tell("filling", tell))

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
        self._wait_for_the_live_runner(stop, patience)
        self.catch_up()
        return Differences.find(self.target, self.connection, self.live, self.rebuild.tables, self.source.name)

    def swap(
        self, differences: Differences, stop: Event, patience: float, tell: Tell, accept: bool = False
    ) -> Swapped | None:
        """differences: those that must be gone by then, unless they are accepted. None when told to stop."""

        def follow() -> None:
            self._wait_for_the_live_runner(stop, min(patience, USUAL_LAG))

        def catch_up() -> None:
            self.catch_up()
            follow()

        self.tell("swapping", tell)
        self.catch_up()
        wait_for_old_snapshots(self.connection, self.target.name, stop, patience)
        follow()
        swap = Swap(self.target, self.rebuild, self.live, self.sides, self.source, catch_up, differences, accept)
        return swap.run(stop, patience)

    def catch_up(self) -> None:
        """In this process, with the workers' places, until little is left; and what was put in by hand since."""
        with self.target.connect_other() as other:
            for place in self._places(self.rebuild.run):
                filler = Filler(self.target, place, self.source, other)
                while not filler.step().close:
                    pass
        carry(self.target, self.connection, self.live)

    def tell(self, doing: str, tell: Tell) -> None:
        tell(doing, *self.source.extent(self._progress().positions))

    @cached_property
    def sides(self) -> Sides:
        """One for all of it: what it has learned while the live runner came up is not asked again behind the fence."""
        if self.target.is_fed_by_the_store and isinstance(self.source, StoreSource):
            return StoreSides(self.target, self.live, self.source)
        return KafkaSides(self.target, self.live, self.source)

    def _places(self, run: int) -> list[Place]:
        if self.source.partitions:
            return [Place(self.live, run, partitions=self.source.partitions)]
        workers = len(self._progress().positions)
        return [Place(self.live, run, worker, workers) for worker in range(workers)]

    def _progress(self) -> Progress:
        return state.progress(self.connection, self.target.name)

    def _reached(self) -> int:
        return max(self._progress().positions)

    def _live_version(self) -> int:
        return self.sides.live_version(self.connection)

    def _would_be_lost(self, tables: Sequence[str]) -> list[str]:
        changed = self._live_version() != self.target.projection.version
        return what_would_be_lost(self.connection, self.live, self.target.other_schema, tables, changed)

    def _wait_for_the_live_runner(self, stop: Event, patience: float) -> None:
        reached = self._reached()
        deadline, backoff = monotonic() + patience, Backoff(base=0.05, cap=0.5)
        while self.sides.waiting(self.connection, reached) and monotonic() < deadline and not backoff.wait(stop):
            pass


@contextmanager
def holding(target: Target) -> Iterator[Holding]:
    """Raises RebuildRefused while another process has one, NeedsDirectConnection, psycopg.Error."""
    migrate(target.dsn, [state.MIGRATIONS])
    with target.connect() as connection, state.alone(connection, target):
        yield Holding(target, connection, schema.live_schema(connection))


@contextmanager
def session(target: Target, from_topics: bool | None = None) -> Iterator[Session]:
    """from_topics: None for whichever it was begun with, at first the store.

    Raises as `holding` does; RebuildRefused too when it was begun with the other source, or with other partitions;
    TopicsUnreadable.
    """
    with holding(target) as held:
        partitions = state.partitions(held.connection, target.name)
        if from_topics is not None and state.read(held.connection, target.name):
            _refuse_another_source(target, partitions, from_topics)
        with opened(target, held.connection, held.live, partitions, bool(from_topics)) as source:
            yield Session(target, held.connection, held.live, source)


def _refuse_another_source(target: Target, partitions: Sequence[Partition], from_topics: bool) -> None:
    if from_topics != bool(partitions):
        source = "its topics" if partitions else "the store"
        raise RebuildRefused(target.name, f"it was begun from {source}: go on so, or `rebuild abandon` it first")
