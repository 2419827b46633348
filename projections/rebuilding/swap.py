"""The swap: in one transaction both sides come to hold the same events, are compared, and change places.

Writers wait for as long as that takes. Readers wait only for the last part, which renames and touches no row.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic

import psycopg
from psycopg import Connection, sql

from infrastructure.backoff import Backoff
from infrastructure.postgres import cause_of
from projections.rebuilding import state
from projections.rebuilding.carry import carry
from projections.rebuilding.differences import Differences, that_are_refused
from projections.rebuilding.errors import RebuildRefused, SwapBusy
from projections.rebuilding.exchange import exchange, exchange_migrations, existing, look_in, read_views
from projections.rebuilding.fill import Filler
from projections.rebuilding.keeping import copy_grants
from projections.rebuilding.sides import FOR_WRITERS, Left, Sides
from projections.rebuilding.source import Place, Source, TooFarApart
from projections.rebuilding.state import Rebuild
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import TopicsUnreadable

logger = logging.getLogger(__name__)

FOR_READERS = 0.3
"""Seconds to wait for the readers of the moment; new ones queue meanwhile, so it must be short."""

LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"

_TRY_AGAIN = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, TooFarApart, TopicsUnreadable)


@dataclass(frozen=True)
class Swapped:
    """held: seconds for which readers could not come in. returnable: whether `rebuild rollback` can go back."""

    held: float
    returnable: bool


@dataclass(frozen=True)
class Swap:
    """catch_up: brings the other tables up to the source's end, and lets the live ones follow; outside of the
    transaction.

    differences: those that must be gone by then, unless they are accepted.
    """

    target: Target
    rebuild: Rebuild
    live: str
    sides: Sides
    source: Source
    catch_up: Callable[[], None]
    differences: Differences
    accept: bool = False

    def run(self, stop: Event, within: float) -> Swapped | None:
        """Tries until it gets its locks; None when it was told to stop before.

        Raises TablesDiffer, RebuildRefused, SwapBusy or TopicsUnreadable after `within` seconds, Superseded,
        RebuildStopped, psycopg.Error. Then nothing has changed.
        """
        deadline, backoff, is_behind = monotonic() + within, Backoff(base=0.2, cap=2.0), False
        while not stop.is_set():
            try:
                if is_behind:
                    self.catch_up()
                with self.target.connect_other() as connection:
                    return self._try(connection)
            except _TRY_AGAIN as error:
                if monotonic() > deadline and isinstance(error, TopicsUnreadable):
                    raise
                if monotonic() > deadline:
                    raise SwapBusy(self.target.name, within) from None
                logger.info("the swap waits", extra={"consumer": self.target.name, "error": cause_of(error)})
            is_behind = True
            backoff.wait(stop)
        return None

    def _try(self, connection: Connection) -> Swapped:
        with self.sides.fenced(connection), connection.transaction():
            self._keep_writers_out(connection)
            left = self._meet(connection)
            carry(self.target, connection, self.live)
            self._refuse_differences(connection, left.complete)
            present = existing(connection, self.live, self.rebuild.tables)
            both = existing(connection, self.rebuild.other_schema, present)
            copy_grants(connection, self.live, self.rebuild.other_schema, both)
            exchange_migrations(connection, self.live, self.rebuild.other_schema, self.rebuild.components)
            returnable = left.returnable and not self._is_lacking(connection)
            self._write_down(connection, left, returnable)
            views = read_views(connection, self.live, self.rebuild.other_schema, present)
            since = monotonic()
            self._lock(connection, present, "ACCESS EXCLUSIVE", FOR_READERS)
            exchange(connection, self.live, self.rebuild.other_schema, self.rebuild.tables, views)
        return Swapped(monotonic() - since, returnable)

    def _keep_writers_out(self, tx: Connection) -> None:
        tx.execute(LOCK_TIMEOUT, (f"{round(FOR_WRITERS * 1000)}",))
        self.sides.fence(tx)
        look_in(tx, self.live)
        # Whoever writes without being a runner, such as a person who counts the stock.
        self._lock(tx, existing(tx, self.live, self.rebuild.tables), "SHARE ROW EXCLUSIVE", FOR_WRITERS)

    def _meet(self, tx: Connection) -> Left:
        positions = state.lock_positions(tx, self.target.name)
        # A process that stood still may have lost its lock, and another one may have swapped meanwhile.
        state.hold_run(tx, self.target.name, self.rebuild.run)
        look_in(tx, self.rebuild.other_schema)
        place = Place(self.live, self.rebuild.run, partitions=self.source.partitions)
        left = self.sides.meet(tx, Filler(self.target, place, self.source, tx), positions)
        look_in(tx, self.live)
        if self.target.has_effects and not left.complete:
            reason = "its runner has not applied all events, or some are in quarantine, and their effects would be lost"
            raise RebuildRefused(self.target.name, f"{reason}: let it catch up, and redrive or discard them first")
        return left

    def _refuse_differences(self, tx: Connection, alike: bool) -> None:
        if not self.accept and (told := self.differences.that_remain(tx, alike)):
            raise self.differences.error(told)

    def _is_lacking(self, tx: Connection) -> bool:
        """Whether the new tables lack what the former ones hold, and nobody would know when it comes again."""
        if self.source.repeats and self.differences.that_are_missing(tx):
            return True
        return bool(that_are_refused(self.target, tx, self.live))

    def _lock(self, tx: Connection, tables: Sequence[str], mode: str, seconds: float) -> None:
        """In one order; at most so long for each, because others queue behind us meanwhile."""
        tx.execute(LOCK_TIMEOUT, (f"{round(seconds * 1000)}",))
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(self.live, table) for table in tables)
            tx.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(names, sql.SQL(mode)))

    def _write_down(self, tx: Connection, left: Left, returnable: bool) -> None:
        version = self.sides.live_version(tx)
        self.sides.hand_over(tx, self.rebuild.version)
        state.swapped(tx, self.target.name, version, left.positions, left.ahead, returnable)
        if not self.source.repeats:
            # Else it tells which events the former tables hold: the same ones, if there is a way back to them.
            forget = sql.SQL("TRUNCATE {}").format(sql.Identifier(self.rebuild.other_schema, "rebuilt_events"))
            tx.execute(forget)
