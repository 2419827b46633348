"""Events that cannot leave, with a running relay and a real Kafka: parked and redriven in order; nobody else waits."""

from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from counterfoil.quarantine_outgoing import OutgoingQuarantine
from counterfoil.quarantine_side import EntryState, Kind
from infrastructure.outgoing_records import count
from infrastructure.postgres import connect
from infrastructure.relay_loop import RelayLoop
from tests.support.kafka import Kafka, MakeTopic
from tests.support.large import limit_messages, note_of
from tests.support.parcels import Parcels, mended_outbox, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relays import checkpoint_of, in_order, repeats_are_identical, running, settings_for, steps
from tests.support.wait import eventually

UniqueName = Callable[[str], str]
NEVER = Event()
OTHERS = [f"y{number}" for number in range(20)]


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def name(unique_name: UniqueName) -> str:
    return unique_name("parcels")


@pytest.fixture
def quarantine(store_dsn: str, name: str) -> Iterator[OutgoingQuarantine]:
    with connect(store_dsn, application_name="test quarantine") as connection:
        yield OutgoingQuarantine(connection, name)


def relay(store_dsn: str, kafka: Kafka, topic: str, name: str, **settings: object) -> RelayLoop:
    return RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap, **settings))


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("size", "limit"),
    [(1_048_700, "1048588"), (999_700, "1048588"), (900_000, "300000")],
    ids=["for any broker", "by exception", "by report"],
)
def test_what_is_too_large_is_parked_with_what_follows_it_and_a_hundred_others_arrive(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    name: str,
    quarantine: OutgoingQuarantine,
    size: int,
    limit: str,
) -> None:
    topic = topics("parcels", partitions=3, config={"max.message.bytes": limit})
    parcels.move("x")
    parcels.move("x", note=note_of(size))
    parcels.move_all(["x", *OTHERS], times=5)

    with running(relay(store_dsn, kafka, topic, name)):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 107, within=40)

    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, other, 5) for other in OTHERS)
    assert steps(found, "x") == [1]
    culprit, *followers = quarantine.list(key="x", closed=False, limit=99)
    assert (culprit.kind, culprit.category, culprit.place) == (Kind.CULPRIT, "refused", "position 2, version 2")
    assert [each.kind for each in followers] == [Kind.FOLLOWER] * 5
    assert count(parcels.connection, name) == (6, 1)


@pytest.mark.kafka
def test_after_the_topic_allows_it_a_redrive_brings_all_out_in_order_while_new_events_of_the_key_come(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, name: str, quarantine: OutgoingQuarantine
) -> None:
    topic = topics("parcels", partitions=3, config={"max.message.bytes": "300000"})
    parcels.move("x", note=note_of(900_000))
    enough = Event()

    def write() -> None:
        while not enough.wait(0.005):
            parcels.move_all(["x", "y"], times=1)

    with running(relay(store_dsn, kafka, topic, name, relay_batch_size=10)):
        writer = Thread(target=write)
        writer.start()
        try:
            eventually(lambda: len(quarantine.list(key="x", closed=False, limit=30)) == 30, within=40)
            refused = quarantine.redrive("x", wait=60, stop=NEVER)
            assert (refused.pending, refused.released) == (0, 0)
            assert [each.attempts for each in refused.failed] == [1]
            limit_messages(kafka, topic, 1_048_588)
            eventually(lambda: quarantine.redrive("x", wait=60, stop=NEVER).released, within=60)
            eventually(lambda: not quarantine.list(key="x", closed=False, limit=1), within=60)
        finally:
            enough.set()
            writer.join()
        last = parcels.move("x")
        eventually(lambda: checkpoint_of(store_dsn, name).position == last, within=40)

    found = published(kafka.bootstrap, topic)
    assert in_order(found, "x", parcels.versions["x"])
    assert in_order(found, "y", parcels.versions["y"])
    assert repeats_are_identical(found)
    assert {each.state for each in quarantine.list(key="x", closed=True, limit=9_999)} == {EntryState.RELEASED}


@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["at-least-once", "effectively-once"])
def test_of_many_keys_redriven_together_the_refused_one_alone_stays_in_either_delivery_mode(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    name: str,
    quarantine: OutgoingQuarantine,
    delivery: str,
) -> None:
    topic = topics("parcels", partitions=1, config={"max.message.bytes": "20000"})
    for other in OTHERS[:9]:
        parcels.move(other, note="not yet!")
        parcels.move(other)
    parcels.move("x", note=note_of(60_000))
    parcels.move_all(["x", "fine"], times=1)
    settings = settings_for(store_dsn, kafka.bootstrap, relay_delivery=delivery)
    with running(RelayLoop(parcel_outbox(topic, name), settings)):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 21, within=40)
    assert count(parcels.connection, name) == (20, 10)

    with running(RelayLoop(mended_outbox(topic, name), settings)):
        redriven = quarantine.redrive(None, wait=60, stop=NEVER)
        last = parcels.move("fine")
        eventually(lambda: checkpoint_of(store_dsn, name).position == last, within=40)

    assert (redriven.pending, redriven.released, redriven.left) == (0, 18, 2)
    assert [(each.key, each.category) for each in redriven.failed] == [("x", "refused")]
    found = published(kafka.bootstrap, topic, isolation="read_committed")
    assert all(in_order(found, other, 2) for other in OTHERS[:9])
    assert (steps(found, "x"), steps(found, "fine")) == ([], [1, 2])


@pytest.mark.kafka
def test_two_hundred_poison_events_at_the_head_starve_nobody(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, name: str
) -> None:
    topic = topics("parcels", partitions=3, config={"max.message.bytes": "20000"})
    for number in range(100):
        parcels.move(f"unmappable-{number}", note="!")
        parcels.move(f"too-large-{number}", note=note_of(60_000))
    parcels.move_all(OTHERS, times=2)

    with running(relay(store_dsn, kafka, topic, name, relay_batch_size=100)):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 240, within=60)

    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, other, 2) for other in OTHERS)
    assert count(parcels.connection, name) == (200, 200)


def test_events_of_code_that_is_not_there_yet_are_parked_and_come_out_when_it_is(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, name: str, quarantine: OutgoingQuarantine
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move("x")
    parcels.move("x", note="not yet!")
    parcels.move_all(["x", "y"], times=2)
    with running(relay(store_dsn, kafka, topic, name)):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 6, within=40)
    asked = quarantine.redrive(None, wait=0, stop=NEVER)
    assert (asked.keys, asked.pending, asked.left) == (1, 1, 3)
    assert {each.state for each in quarantine.list(key=None, closed=False, limit=9)} == {EntryState.ASKED}

    newer = RelayLoop(mended_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))
    with running(newer):
        eventually(lambda: not quarantine.list(key=None, closed=False, limit=9), within=60)

    found = published(kafka.bootstrap, topic)
    assert (in_order(found, "x", 4), in_order(found, "y", 2)) == (True, True)
    assert len(found) == 6


def test_what_is_discarded_is_kept_with_the_reason_and_the_rest_of_its_key_goes_on_with_a_redrive(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, name: str, quarantine: OutgoingQuarantine
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move("x", note="!")
    parcels.move_all(["x"], times=2)

    with running(relay(store_dsn, kafka, topic, name)):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 3, within=40)
        (culprit, *_) = quarantine.list(key="x", closed=False, limit=9)
        discarded = quarantine.discard(culprit.id, "sent by hand", "ann")
        redriven = quarantine.redrive("x", wait=60, stop=NEVER)
        assert (redriven.released, redriven.left, redriven.pending) == (2, 0, 0)
        last = parcels.move("x")
        eventually(lambda: checkpoint_of(store_dsn, name).position == last, within=40)
        eventually(lambda: steps(published(kafka.bootstrap, topic), "x") == [2, 3, 4], within=40)

    assert (discarded.state, discarded.closed_reason, discarded.closed_by) == (
        EntryState.DISCARDED,
        "sent by hand",
        "ann",
    )
    assert quarantine.show(culprit.id).entry == discarded
