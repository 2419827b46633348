"""The life of a process that feeds a projection from the store: it stands by, applies, waits, reconnects and stops."""

import hashlib
import logging
from collections.abc import Sequence
from enum import StrEnum
from threading import Event
from time import monotonic

from infrastructure import metrics
from infrastructure.backoff import Backoff
from infrastructure.event_reader import NotAPrimary
from infrastructure.hints import HintSender
from infrastructure.outbox import Outbox
from infrastructure.postgres import Connection, cause_of
from infrastructure.rest import Rest
from infrastructure.settings import Settings
from infrastructure.supervisor import beat
from projections.base import Projection
from projections.database import Database
from projections.faults import is_no_event_at_fault
from projections.store_feed import Outcome, Step, StoreFeed

logger = logging.getLogger(__name__)

# For as long as the session lasts. It only keeps the runners of a shard from doing each other's work in vain;
# that an event is applied once is kept by the move of the position.
STAND_BY = "SELECT pg_try_advisory_lock(%s)"

# A process that was frozen would keep the lock for as long as its session lives.
END_A_SILENT_SESSION = "SELECT set_config('idle_session_timeout', %s, false)"

_STAND_BY_EVERY = 1.0
_MEASURE_EVERY = 1.0


class State(StrEnum):
    STANDBY = "standby"
    """Another process works on this shard."""
    APPLYING = "applying"
    WAITING_FOR_STORE = "waiting_for_store"
    HELD = "held"
    """There is an event that cannot be passed; see the reason in the log and in projection_positions."""
    STOPPED = "stopped"


class ShardRunner:
    """One shard of a projection, in this thread. Any number may run the same shard: one works, the others stand by."""

    def __init__(
        self,
        projection: Projection,
        outboxes: Sequence[Outbox],
        dsn: str,
        settings: Settings,
        shard: int = 0,
        applied: HintSender | None = None,
    ) -> None:
        """applied: what is told that the position has moved."""
        self._settings, self._shard = settings, shard
        self._name = projection.consumer_name
        size, max_bytes = settings.consume_batch_size, settings.relay_batch_bytes
        self._feed = StoreFeed(projection, outboxes, shard, size, max_bytes, settings.relay_lease / 3)
        self._database = Database(dsn, f"counterfoil project {self._name}")
        self._applied = applied
        self._idle = Rest(settings, self._feed.keep_alive)
        self._measured_at = float("-inf")
        self._store_pause = Backoff(base=0.1, cap=5.0)
        self._held_pause = Backoff(base=0.5, cap=30.0)
        self._said: tuple[State, str | None] | None = None

    def wake(self) -> None:
        """There may be something new."""
        self._idle.wake()

    def run(self, stop: Event) -> None:
        """Until told to stop; then, within `stop_grace`, the batch is finished or rolled back.

        It waits out every trouble with PostgreSQL. Raises ShardsChanged, and what nobody has foreseen.
        """
        try:
            with self._database.cut_when_late(stop, self._settings.stop_grace / 2):
                while not stop.is_set():
                    beat(self._feed.loop)
                    self._run_connected(stop)
        finally:
            self._database.drop()
            self._enter(State.STOPPED)

    def _run_connected(self, stop: Event) -> None:
        """For as long as one connection lasts, and with it the right to work on the shard."""
        try:
            connection = self._database.connection()
            if not self._stand_by(connection, stop):
                return
            self._feed.connect(connection)
            while not stop.is_set():
                step = self._feed.step(stop)
                self._store_pause.reset()
                self._show(step)
                self._rest(step, stop)
        except Exception as error:
            if not isinstance(error, NotAPrimary) and not is_no_event_at_fault(error):
                raise
            self._database.drop()
            self._enter(State.WAITING_FOR_STORE, cause_of(error))
            self._store_pause.wait(stop)

    def _stand_by(self, connection: Connection, stop: Event) -> bool:
        """True once nobody else works on the shard; False when told to stop before."""
        connection.execute(END_A_SILENT_SESSION, (f"{round(self._settings.relay_lease * 1_000)}ms",))
        while not stop.is_set():
            beat(self._feed.loop)
            if connection.execute(STAND_BY, (lock_key(self._name, self._shard),)).fetchone() == (True,):
                return True
            self._enter(State.STANDBY)
            stop.wait(_STAND_BY_EVERY)
        return False

    def _rest(self, step: Step, stop: Event) -> None:
        match step.outcome:
            case Outcome.MOVED:
                self._idle.moved()
                self._held_pause.reset()
                if self._applied:
                    self._applied.hint()
            case Outcome.IDLE:
                self._idle.until_the_next(stop)
            case Outcome.HELD:
                self._idle.for_seconds(self._held_pause.next_delay(), stop)

    def _show(self, step: Step) -> None:
        metrics.FEED_POSITION.labels(self._name, self._shard).set(step.position)
        if monotonic() - self._measured_at > _MEASURE_EVERY:
            self._measured_at = monotonic()
            events, seconds = self._feed.lag()
            metrics.FEED_LAG.labels(self._name, self._shard).set(events)
            metrics.FEED_WAITING.labels(self._name, self._shard).set(seconds)
        if step.outcome is Outcome.HELD:
            self._enter(State.HELD, step.reason)
        else:
            self._enter(State.APPLYING)

    def _enter(self, state: State, reason: str | None = None) -> None:
        """Each change is logged once, with the reason; an unchanged state stays quiet."""
        if self._said == (state, reason):
            return
        self._said = (state, reason)
        for each in State:
            metrics.FEED_STATE.labels(self._name, self._shard, each).set(each is state)
        level = logging.WARNING if state in (State.WAITING_FOR_STORE, State.HELD) else logging.INFO
        fields = {"projection": self._name, "shard": self._shard, "state": str(state), "reason": reason}
        logger.log(level, "projection state", extra=fields)


def lock_key(projection: str, shard: int) -> int:
    """A hash, so that no two names are one lock, however long they are."""
    digest = hashlib.sha256(f"counterfoil project {shard} {projection}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
