"""Resharding effectively once: nobody commits under the old shards any more, and what was committed counts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread

import pytest

from infrastructure.checkpoint import read_checkpoints
from infrastructure.event_reader import EventReader
from infrastructure.kafka_faults import Fault
from infrastructure.lease import Lease, LeaseLost, Shard, acquire
from infrastructure.outbox_relay import Relay
from infrastructure.postgres import Connection, connect
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed, Sending
from infrastructure.publishers import publisher_for, transactional_name
from infrastructure.relay_loop import RelayLoop
from infrastructure.resharding import KafkaNotAsked, OldShardUnsettled, reshard
from infrastructure.settings import Settings
from infrastructure.transactional_publisher import TransactionalPublisher
from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relay_fleet import have_shards, positions
from tests.support.relays import NEVER, Recorder, one, running, settings_for
from tests.support.transactions import nothing
from tests.support.transactions import resume as resume_patiently
from tests.support.wait import eventually

KEYS = [f"p{number}" for number in range(20)]

Turn = Callable[[], None]


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def operator(store_dsn: str) -> Iterator[Connection]:
    with connect(store_dsn, application_name="test operator") as connection:
        yield connection


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("parcels")


def effectively_once(dsn: str, bootstrap: str) -> Settings:
    return settings_for(dsn, bootstrap, relay_delivery="effectively-once", publish_timeout=60, stop_grace=12)


class FallsAsleep:
    """A publisher whose process is frozen after its last look at the lease, and wakes up when it is told to."""

    def __init__(self, publisher: TransactionalPublisher) -> None:
        self._publisher = publisher
        self.asleep, self.awake = Event(), Event()
        self.failure: PublishFailed | None = None

    def resume(self, stored: Mark, turn: Turn) -> Mark:
        return resume_patiently(self._publisher, stored)

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Turn) -> Sending:
        self._sending = self._publisher.send(messages, covers, turn)
        return self

    def wait(self, stop: Event, turn: Turn) -> int:
        self._publisher.producer.get().flush(30.0)  # so that Kafka has the messages
        self.asleep.set()
        assert self.awake.wait(60.0)
        try:
            return self._sending.wait(stop, nothing)
        except PublishFailed as failure:
            self.failure = failure
            raise

    def drop(self) -> None:
        self._sending.drop()

    def close(self) -> None:
        self._publisher.close()


@pytest.mark.kafka
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_what_an_old_shard_has_left_open_is_never_committed_once_the_new_ones_publish(
    store_dsn: str,
    parcels: Parcels,
    operator: Connection,
    kafka: Kafka,
    topics: MakeTopic,
    name: str,
    before: int,
    after: int,
) -> None:
    outbox, settings = parcel_outbox(topics("parcels", 3), name), effectively_once(store_dsn, kafka.bootstrap)
    namespace = EventReader(operator).namespace()
    have_shards(store_dsn, name, before)
    parcels.move_all(KEYS, times=1)
    last = Shard(name, before - 1, before)
    publisher = publisher_for(settings, namespace, outbox, last)
    assert isinstance(publisher, TransactionalPublisher)
    zombie = FallsAsleep(publisher)

    def fall_asleep() -> None:
        with connect(store_dsn, application_name="test zombie") as connection:
            acquired = acquire(connection, last, 60)
            assert acquired is not None
            relay = Relay(outbox, zombie, *acquired, 500)
            relay.connect(connection)
            with suppress(LeaseLost):  # said when it has committed after all
                relay.step(NEVER)

    process = Thread(target=fall_asleep)
    process.start()
    assert zombie.asleep.wait(60.0)
    operator.execute("UPDATE relay_checkpoints SET lease_expires_at = clock_timestamp() WHERE owner IS NOT NULL")

    reshard(operator, name, after, 60, NEVER, partial(publisher_for, settings, namespace, outbox))
    if after > before:  # the one that has the zombie's name is not there yet
        acquire(operator, Shard(name, 0, after), 60)
    with running(RelayLoop(outbox, settings)):
        eventually(lambda: positions(store_dsn, name)[-1] == len(KEYS), within=60)
        zombie.awake.set()
        process.join(60)
        operator.execute("UPDATE relay_checkpoints SET owner = NULL, lease_expires_at = NULL WHERE position = 0")
        eventually(lambda: set(positions(store_dsn, name)) == {len(KEYS)}, within=60)

    found = published(kafka.bootstrap, outbox.contracts[0].topic, isolation="read_committed")
    assert sorted(each.key.decode() for each in found) == sorted(KEYS)
    assert zombie.failure is not None
    assert zombie.failure.fault is Fault.PRODUCER


@pytest.mark.kafka
def test_what_kafka_knows_to_be_committed_counts_though_the_checkpoint_is_behind(
    store_dsn: str, parcels: Parcels, operator: Connection, kafka: Kafka, topics: MakeTopic, name: str
) -> None:
    topic = topics("parcels", 3)
    outbox, settings = parcel_outbox(topic, name), effectively_once(store_dsn, kafka.bootstrap)
    namespace = EventReader(operator).namespace()
    have_shards(store_dsn, name, 1)
    (status,) = read_checkpoints(operator, name)
    died = TransactionalPublisher(settings, transactional_name(namespace, Shard(name)), [topic])
    resume_patiently(died)
    message = OutgoingMessage(topic, b"p", b"{}", (), 7)
    died.send([message], Mark(7, status.generation, bytes(32)), nothing).wait(NEVER, nothing)
    died.close()

    done = reshard(operator, name, 3, 60, NEVER, partial(publisher_for, settings, namespace, outbox))

    assert (done.position, done.repeats_up_to) == (7, 7)
    assert [(each.position, each.anchor) for each in read_checkpoints(operator, name)] == [(7, bytes(32))] * 3


def test_while_kafka_says_nothing_the_shards_stay_as_they_are(store_dsn: str, operator: Connection, name: str) -> None:
    have_shards(store_dsn, name, 2)
    settings = settings_for(store_dsn, "127.0.0.1:1", relay_delivery="effectively-once", stop_grace=3)
    open_one = partial(publisher_for, settings, EventReader(operator).namespace(), parcel_outbox("parcels", name))

    with pytest.raises(OldShardUnsettled, match="Nothing was changed"):
        reshard(operator, name, 3, 60, NEVER, open_one)

    assert [(each.shards, each.paused) for each in read_checkpoints(operator, name)] == [(2, False)] * 2


def test_who_does_not_ask_kafka_is_refused_after_a_relay_that_ran_effectively_once(
    store_dsn: str, operator: Connection, name: str
) -> None:
    for delivery in ("effectively-once", "at-least-once", "effectively-once"):
        settings = settings_for(store_dsn, "127.0.0.1:1", relay_delivery=delivery)
        with running(RelayLoop(parcel_outbox("parcels", name), settings, one(Recorder()))):
            eventually(lambda: any(each.leased for each in read_checkpoints(operator, name)), within=60)
        shards = len(read_checkpoints(operator, name)) + 1
        if delivery == "at-least-once":
            assert reshard(operator, name, shards, 60, NEVER).after == shards
            continue
        before = read_checkpoints(operator, name)
        with pytest.raises(KafkaNotAsked, match=r"RELAY_DELIVERY=effectively-once"):
            reshard(operator, name, shards, 60, NEVER)
        assert [(each.shard, each.position, each.generation) for each in read_checkpoints(operator, name)] == [
            (each.shard, each.position, each.generation) for each in before
        ]

    assert reshard(operator, name, 3, 60, NEVER, one(Recorder())).after == 3
    assert reshard(operator, name, 2, 60, NEVER).after == 2  # nobody has published under these


def test_whoever_published_while_the_operators_process_slept_is_asked_again(
    store_dsn: str, operator: Connection, name: str
) -> None:
    have_shards(store_dsn, name, 1)
    taken: list[Lease] = []

    class Slept(Recorder):
        def resume(self, stored: Mark, turn: Turn) -> Mark:
            operator.execute("UPDATE relay_checkpoints SET paused_until = NULL, paused_since = NULL")
            if not taken:
                acquired = acquire(operator, name, 60)
                assert acquired is not None
                taken.append(acquired[0])
                acquired[0].release(operator)
            return super().resume(stored, turn)

    asked: list[Shard] = []

    def open_one(shard: Shard) -> Slept:
        asked.append(shard)
        return Slept()

    assert reshard(operator, name, 2, 60, NEVER, open_one).after == 2
    assert asked == [Shard(name), Shard(name)]
