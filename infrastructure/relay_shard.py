"""One shard of a relay in a thread: it publishes, waits, reconnects and stops; it keeps on while it has the lease."""

from threading import Event, Thread
from time import monotonic

import psycopg

from infrastructure.backoff import Backoff
from infrastructure.event_reader import NotAPrimary
from infrastructure.kafka_faults import Fault
from infrastructure.lease import LeaseLost
from infrastructure.outbox_relay import Outcome, Relay, Step
from infrastructure.postgres import Connection, Timeouts, cause_of, connect
from infrastructure.publisher import Publisher
from infrastructure.relay_states import Announcer, State
from infrastructure.rest import Rest
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running
from infrastructure.topics import Topics, TopicsNotReady


def connect_relay(settings: Settings, name: str) -> Connection:
    """Each wait well within the lease, so that it is renewed, or known to be lost, in time."""
    statement = min(5.0, max(1.0, settings.relay_lease / 3))
    timeouts = Timeouts(connect=3.0, lock=statement, statement=statement, margin=1.0)
    return connect(settings.required_store_dsn(), application_name=f"counterfoil relay {name}", timeouts=timeouts)


class ShardThread:
    """Publishes for one shard until it is told to let go, or until the lease is lost.

    It waits out every trouble with PostgreSQL and Kafka, with growing pauses, and keeps its lease over that.
    """

    def __init__(self, relay: Relay, publisher: Publisher, settings: Settings, topics: Topics) -> None:
        self.number = relay.shard.number
        self.shards = relay.shard.shards
        self._relay, self._publisher, self._settings, self._topics = relay, publisher, settings, topics
        self._idle, self._stop = Rest(settings, relay.keep_lease), Event()
        self._announcer = Announcer(relay.shard.relay, relay.shard.number)
        self._measured_at = float("-inf")
        self._store_pause = Backoff(base=0.1, cap=5.0)
        self._kafka_pause = Backoff(base=0.1, cap=5.0)
        self._held_pause = Backoff(base=0.5, cap=30.0)
        self._thread = Thread(target=self._run_supervised, name=relay.loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something may have been stored."""
        self._idle.wake()

    def let_go(self) -> None:
        """Ends it soon: what is acknowledged by then is covered by the checkpoint, and the lease is free."""
        self._stop.set()
        self._idle.wake()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run_supervised(self) -> None:
        try:
            keep_running(self._relay.loop, self._run, self._stop)
        finally:
            self._publisher.close()
            self._announcer.fall_silent()

    def _run(self, stop: Event) -> None:
        try:
            while not stop.is_set():
                self._run_connected(stop)
        except LeaseLost:
            stop.set()

    def _run_connected(self, stop: Event) -> None:
        """For as long as one connection lasts."""
        try:
            with connect_relay(self._settings, self._relay.loop) as connection:
                self._relay.connect(connection)
                while not stop.is_set():
                    step = self._turn(stop)
                    self._store_pause.reset()
                    self._show(step)
                    self._rest(step, stop)
                self._relay.release()
        except (psycopg.Error, NotAPrimary) as error:
            self._announcer.enter(State.WAITING_FOR_STORE, cause_of(error))
            self._store_pause.wait(stop)

    def _turn(self, stop: Event) -> Step:
        try:
            self._topics.ensure(self._relay.keep_lease)
        except TopicsNotReady as error:
            return Step(Outcome.REFUSED, self._relay.position, reason=f"{error.topic or 'topics'}: {error.error}")
        step = self._relay.step(stop)
        if step.fault is Fault.TOPIC:
            self._topics.doubt()
        return step

    def _rest(self, step: Step, stop: Event) -> None:
        if step.published:
            self._kafka_pause.reset()
        match step.outcome:
            case Outcome.MOVED:
                self._idle.moved()  # also past what is of no concern: while much is stored, hints come seldom
                self._held_pause.reset()
            case Outcome.IDLE:
                self._idle.until_the_next(stop)
            case Outcome.REFUSED:
                self._idle.for_seconds(self._kafka_pause.next_delay(), stop)
            case Outcome.HELD:
                self._idle.for_seconds(self._held_pause.next_delay(), stop)

    def _show(self, step: Step) -> None:
        self._announcer.show(step.position, step.outcome is Outcome.HELD)
        if monotonic() - self._measured_at > 1.0:
            self._measured_at = monotonic()
            self._announcer.show_lag(self._relay.highest_position() - step.position)
        match step.outcome:
            case Outcome.REFUSED:
                self._announcer.enter(State.WAITING_FOR_KAFKA, step.reason)
            case Outcome.HELD:
                self._announcer.enter(State.HELD, step.reason)
            case _:
                self._announcer.enter(State.RELAYING)
