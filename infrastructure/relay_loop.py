"""The life of a relay process: it stands by, publishes, waits, reconnects and stops; it never gives up."""

import logging
from enum import StrEnum
from threading import Event
from time import monotonic

import psycopg

from infrastructure import bounded, metrics
from infrastructure.backoff import Backoff
from infrastructure.event_reader import NotAPrimary
from infrastructure.hints import HintListener
from infrastructure.kafka_faults import Fault
from infrastructure.lease import LeaseLost, acquire
from infrastructure.outbox import Outbox
from infrastructure.outbox_relay import Outcome, Relay, Step
from infrastructure.postgres import Connection, Timeouts, cause_of, connect
from infrastructure.publisher import KafkaPublisher, Publisher
from infrastructure.settings import Settings
from infrastructure.supervisor import beat
from infrastructure.topics import TopicsNotReady, ensure_topics

logger = logging.getLogger(__name__)

_SLICE = 0.25
"""Seconds between two looks at the stop event and the lease while there is nothing else to do."""
_BUSY = 1.0
"""Seconds after the last event for which it looks for the next one more often."""


class State(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    """Another process has the lease."""
    RELAYING = "relaying"
    WAITING_FOR_KAFKA = "waiting_for_kafka"
    WAITING_FOR_STORE = "waiting_for_store"
    HELD = "held"
    """There is an event that cannot be passed; see the reason in the log and in the checkpoint's row."""
    STOPPED = "stopped"


class RelayLoop:
    """One relay of an outbox, in this process: `RelayLoop(load_outbox("domain.orders"), settings).run(stop)`.

    Any number of processes may run the same relay: one publishes, the others stand by and take over within
    the lease time. It waits out every trouble with PostgreSQL and Kafka, with growing pauses, and goes on
    by itself. `run` ends soon after `stop` is set, within the settings' `stop_grace`.
    """

    def __init__(self, outbox: Outbox, settings: Settings, publisher: Publisher | None = None) -> None:
        """publisher: another one than Kafka's, for tests. Raises SettingsError when no store is named."""
        self.name = outbox.name
        self._outbox, self._settings = outbox, settings
        self._dsn = settings.required_store_dsn()
        self._publisher = publisher or KafkaPublisher(settings)
        self._woken = Event()
        self._relay: Relay | None = None
        self._topics_are_ready = False
        self._moved_at = self._measured_at = float("-inf")
        self._store_pause = Backoff(base=0.1, cap=5.0)
        self._kafka_pause = Backoff(base=0.1, cap=5.0)
        self._held_pause = Backoff(base=0.5, cap=30.0)
        self._said: tuple[State, str | None] | None = None

    def run(self, stop: Event) -> None:
        self._enter(State.STARTING)
        listener = HintListener(self._dsn, self._woken.set, name=f"{self.name}-hints")
        listener.start()
        try:
            while not stop.is_set():
                beat(self.name)
                self._run_connected(stop)
        finally:
            self._publisher.close()
            bounded.within(1.0, listener.stop, "relay-listener-stop")
            self._enter(State.STOPPED)

    def _run_connected(self, stop: Event) -> None:
        """For as long as one connection and one lease last."""
        try:
            with self._connect() as connection:
                relay = self._relay = self._relay or self._stand_by(connection, stop)
                if relay is not None:
                    relay.connect(connection)
                    self._work(relay, stop)
                    relay.release()
                    self._relay = None
        except LeaseLost:
            self._relay = None
        except (psycopg.Error, NotAPrimary) as error:
            self._enter(State.WAITING_FOR_STORE, cause_of(error))
            self._store_pause.wait(stop)

    def _connect(self) -> Connection:
        """Each wait well within the lease, so that it is renewed, or known to be lost, in time."""
        statement = min(5.0, max(1.0, self._settings.relay_lease / 3))
        timeouts = Timeouts(connect=3.0, lock=statement, statement=statement, margin=1.0)
        return connect(self._dsn, application_name=f"counterfoil relay {self.name}", timeouts=timeouts)

    def _stand_by(self, connection: Connection, stop: Event) -> Relay | None:
        """Until nobody else has the lease; None when told to stop before."""
        seconds = self._settings.relay_lease
        while not stop.is_set():
            beat(self.name)
            acquired = acquire(connection, self.name, seconds)
            if acquired is not None:
                lease, position = acquired
                size, max_bytes = self._settings.relay_batch_size, self._settings.relay_batch_bytes
                return Relay(self._outbox, self._publisher, lease, position, size, max_bytes)
            self._enter(State.STANDBY)
            stop.wait(min(1.0, seconds / 5))
        return None

    def _work(self, relay: Relay, stop: Event) -> None:
        while not stop.is_set():
            step = self._turn(relay, stop)
            self._store_pause.reset()
            self._show(relay, step)
            self._rest(relay, step, stop)

    def _turn(self, relay: Relay, stop: Event) -> Step:
        if not self._topics_are_ready:
            try:
                ensure_topics(self._settings, self._outbox.contracts, relay.keep_lease)
            except TopicsNotReady as error:
                return Step(Outcome.REFUSED, relay.position, reason=f"{error.topic or 'topics'}: {error.error}")
            self._topics_are_ready = True
        step = relay.step(stop)
        self._topics_are_ready = step.fault is not Fault.TOPIC
        return step

    def _rest(self, relay: Relay, step: Step, stop: Event) -> None:
        if step.published:
            self._moved_at = monotonic()
            self._kafka_pause.reset()
        match step.outcome:
            case Outcome.MOVED:
                self._held_pause.reset()
            case Outcome.IDLE:
                busy = monotonic() - self._moved_at < _BUSY
                longest = self._settings.relay_poll_busy if busy else self._settings.relay_poll_idle
                woken = self._wait(relay, longest, self._woken, stop)
                self._woken.clear()
                metrics.WAKE_UPS.labels("hint" if woken else "poll").inc()
            case Outcome.REFUSED:
                self._wait(relay, self._kafka_pause.next_delay(), stop, stop)
            case Outcome.HELD:
                self._wait(relay, self._held_pause.next_delay(), stop, stop)

    def _wait(self, relay: Relay, seconds: float, woken: Event, stop: Event) -> bool:
        """True when it was woken before the time was over. Keeps the lease meanwhile."""
        until = monotonic() + seconds
        while not stop.is_set() and (left := until - monotonic()) > 0:
            if woken.wait(min(_SLICE, left)):
                return True
            relay.keep_lease()
        return False

    def _show(self, relay: Relay, step: Step) -> None:
        metrics.RELAY_POSITION.labels(self.name).set(step.position)
        metrics.RELAY_HELD.labels(self.name).set(step.outcome is Outcome.HELD)
        if monotonic() - self._measured_at > 1.0:
            self._measured_at = monotonic()
            metrics.RELAY_LAG.labels(self.name).set(relay.highest_position() - step.position)
        match step.outcome:
            case Outcome.REFUSED:
                self._enter(State.WAITING_FOR_KAFKA, step.reason)
            case Outcome.HELD:
                self._enter(State.HELD, step.reason)
            case _:
                self._enter(State.RELAYING)

    def _enter(self, state: State, reason: str | None = None) -> None:
        """Each change is logged once, with the reason; an unchanged state stays quiet."""
        if self._said == (state, reason):
            return
        self._said = (state, reason)
        for each in State:
            metrics.RELAY_STATE.labels(self.name, each).set(each is state)
        trouble = state in (State.WAITING_FOR_KAFKA, State.WAITING_FOR_STORE, State.HELD)
        level = logging.WARNING if trouble else logging.INFO
        logger.log(level, "relay state", extra={"relay": self.name, "state": str(state), "reason": reason})
