"""The life of a relay process: it shows up, takes its share of the shards, and lets go of what it has too much."""

from collections.abc import Callable
from threading import Event
from time import monotonic

import psycopg

from infrastructure import bounded, metrics
from infrastructure.backoff import Backoff
from infrastructure.event_reader import EventReader, NotAPrimary
from infrastructure.hints import HintListener
from infrastructure.lease import Shard, acquire, new_process
from infrastructure.outbox import Outbox
from infrastructure.outbox_relay import Relay
from infrastructure.postgres import Connection, cause_of
from infrastructure.publisher import Publisher
from infrastructure.publishers import publisher_for
from infrastructure.relay_processes import Table, leave, look, show_up
from infrastructure.relay_shard import ShardThread, connect_relay
from infrastructure.relay_states import Announcer, State
from infrastructure.settings import Settings
from infrastructure.supervisor import beat
from infrastructure.topics import Topics

PublisherFor = Callable[[Shard], Publisher]


class RelayLoop:
    """A process of the relay of an outbox: `RelayLoop(load_outbox("domain.orders"), settings).run(stop)`.

    Any number of processes may run the same relay. Each publishes for its share of the shards, in a thread with
    a connection and a publisher for each, and takes over from others within the lease time. When there are more
    processes than shards, the others stand by. It waits out every trouble, with growing pauses, and goes on by
    itself. `run` ends soon after `stop` is set, within the settings' `stop_grace`.
    """

    def __init__(self, outbox: Outbox, settings: Settings, publisher_for: PublisherFor | None = None) -> None:
        """publisher_for: others than the settings ask for, for tests. Raises SettingsError when no store is named."""
        self.name = outbox.name
        self._outbox, self._settings = outbox, settings
        self._dsn = settings.required_store_dsn()
        self._publisher_for = publisher_for
        self._process = new_process()
        self._topics = Topics(settings, outbox.contracts)
        self._threads: dict[int, ShardThread] = {}
        self._pause = Backoff(base=0.1, cap=5.0)
        self._announcer = Announcer(self.name)
        self._ends_at: float | None = None

    def run(self, stop: Event) -> None:
        self._announcer.enter(State.STARTING)
        self._ends_at = None
        listener = HintListener(self._dsn, self._wake, name=f"{self.name}-hints")
        listener.start()
        try:
            while not stop.is_set():
                beat(self.name)
                self._run_connected(stop)
        finally:
            self._let_go_of_all()
            bounded.within(1.0, listener.stop, "relay-listener-stop")
            self._announcer.enter(State.STOPPED)

    def _run_connected(self, stop: Event) -> None:
        """For as long as one connection lasts. The shards have their own, and go on meanwhile."""
        try:
            with connect_relay(self._settings, self.name) as connection:
                while not stop.is_set():
                    beat(self.name)
                    self._balance(connection)
                    self._pause.reset()
                    stop.wait(min(1.0, self._settings.relay_lease / 5))
                self._let_go_of_all()
                leave(connection, self.name, self._process)
        except (psycopg.Error, NotAPrimary) as error:
            self._announcer.enter(State.WAITING_FOR_STORE, cause_of(error))
            self._pause.wait(stop)

    def _balance(self, connection: Connection) -> None:
        show_up(connection, self.name, self._process, self._settings.relay_lease)
        table = look(connection, self.name)
        self._threads = {number: thread for number, thread in self._threads.items() if thread.alive}
        self._give(table)
        self._take(connection, table)
        metrics.RELAY_PAUSED.labels(self.name).set(table.paused)
        metrics.RELAY_SHARDS.labels(self.name).set(len(self._threads))
        idle = State.PAUSED if table.paused else State.STANDBY
        self._announcer.enter(State.WORKING if self._threads else idle)

    def _give(self, table: Table) -> None:
        """One at a time of what is too much; all of them while the relay is paused or when its shards have changed."""
        too_many = len(self._threads) - table.share_of(self._process)
        for thread in sorted(self._threads.values(), key=lambda thread: -thread.number):
            if table.paused or thread.shards != len(table.seats):
                thread.let_go()
            elif too_many > 0:
                thread.let_go()  # or is at it since the last look
                break

    def _take(self, connection: Connection, table: Table) -> None:
        """What is free, up to the share."""
        if table.paused:
            return
        if not table.seats:  # it runs for the first time: its row is made with the first lease
            self._try_to_take(connection, Shard(self.name))
        share = table.share_of(self._process)
        for seat in table.seats:
            if seat.holder is None and seat.shard not in self._threads and len(self._threads) < share:
                self._try_to_take(connection, Shard(self.name, seat.shard, seat.shards))

    def _try_to_take(self, connection: Connection, shard: Shard) -> None:
        lasts, delivery = self._settings.relay_lease, self._settings.relay_delivery
        acquired = acquire(connection, shard, lasts, self._process, delivery)
        if acquired is None:
            return  # another process was faster
        lease, position = acquired
        publisher, settings = self._publisher(connection, shard), self._settings
        relay = Relay(self._outbox, publisher, lease, position, settings.relay_batch_size, settings.relay_batch_bytes)
        thread = ShardThread(relay, publisher, settings, self._topics)
        thread.start()
        self._threads[shard.number] = thread

    def _publisher(self, connection: Connection, shard: Shard) -> Publisher:
        if self._publisher_for is not None:
            return self._publisher_for(shard)
        return publisher_for(self._settings, EventReader(connection).namespace(), self._outbox, shard)

    def _let_go_of_all(self) -> None:
        """Each within its own waits, all by one moment, also when this is asked for a second time. What has not ended
        by then is left to its lease."""
        if self._ends_at is None:
            self._ends_at = monotonic() + max(1.0, self._settings.stop_grace - 1.5)
        for thread in self._threads.values():
            thread.let_go()
        for thread in self._threads.values():
            thread.join(max(0.0, self._ends_at - monotonic()))

    def _wake(self) -> None:
        for thread in list(self._threads.values()):
            thread.wake()
