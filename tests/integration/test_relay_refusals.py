"""What Kafka does not take now: the relay waits, visibly, in order, parks nothing, and goes on by itself."""

from collections.abc import Callable, Iterator

import pytest

from infrastructure import metrics
from infrastructure.outgoing_records import count
from infrastructure.relay_loop import RelayLoop
from tests.support import faulty_broker
from tests.support.faulty_broker import FaultyBroker
from tests.support.kafka import Kafka, MakeTopic, delete_topic
from tests.support.large import note_of
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relays import Recorder, checkpoint_of, in_order, one, running, settings_for, state, steps
from tests.support.wait import eventually

UniqueName = Callable[[str], str]


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


# --- Too large only together (not poison) ---------------------------------------------------------------


@pytest.mark.kafka
def test_messages_that_are_too_large_only_together_are_no_poison(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    unique_name: UniqueName,
) -> None:
    name, topic = unique_name("parcels"), topics("parcels", config={"max.message.bytes": "20000"})
    for number in range(20):
        parcels.move(f"p{number}", note=note_of(4_000))

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))):
        eventually(lambda: len({each.key for each in published(kafka.bootstrap, topic)}) == 20, within=40)
        eventually(lambda: checkpoint_of(store_dsn, name).position == 20)
    assert count(parcels.connection, name) == (0, 0)


# --- Topics (not poison) -------------------------------------------------------------------------------


def test_a_missing_topic_is_made(store_dsn: str, kafka: Kafka, parcels: Parcels, unique_name: UniqueName) -> None:
    topic = unique_name("parcels")
    parcels.move("a")

    try:
        with running(RelayLoop(parcel_outbox(topic), settings_for(store_dsn, kafka.bootstrap))):
            eventually(lambda: checkpoint_of(store_dsn).position == 1)
            assert steps(published(kafka.bootstrap, topic)) == [1]
    finally:
        delete_topic(kafka.bootstrap, topic)


@pytest.mark.kafka
def test_a_topic_that_vanishes_is_waited_for_and_made_again_and_what_follows_arrives_in_order(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, topic = unique_name("parcels"), topics("parcels", partitions=3)

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))):
        parcels.move_all(["a", "b"], times=2)
        eventually(lambda: checkpoint_of(store_dsn, name).position == 4)
        delete_topic(kafka.bootstrap, topic)
        parcels.move_all(["a", "b"], times=3)
        eventually(lambda: checkpoint_of(store_dsn, name).position == 10, within=60)

    found = published(kafka.bootstrap, topic)
    assert steps(found, "a") == steps(found, "b") == [3, 4, 5]
    assert count(parcels.connection, name) == (0, 0)


def test_a_forbidden_topic_is_waited_for_visibly_and_then_all_arrive_in_order(
    store_dsn: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name = unique_name("parcels")
    parcels.move_all(["x", "y"], times=3)

    with FaultyBroker(["parcels"]) as broker:
        broker.refuse_next([faulty_broker.TOPIC_AUTHORIZATION_FAILED] * 5)
        with running(RelayLoop(parcel_outbox("parcels", name), settings_for(store_dsn, broker.bootstrap))):
            eventually(lambda: state(name) == "waiting_for_kafka")
            assert count(parcels.connection, name) == (0, 0)
            eventually(lambda: checkpoint_of(store_dsn, name).position == 6, within=40)
            eventually(lambda: state(name) == "relaying")
        found = published(broker.bootstrap, "parcels")

    assert in_order(found, "x", 3)
    assert in_order(found, "y", 3)


@pytest.mark.parametrize("code", [faulty_broker.NOT_ENOUGH_REPLICAS, faulty_broker.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_an_event_refused_twice_and_then_accepted_is_not_overtaken_by_the_next_of_its_key(
    store_dsn: str, parcels: Parcels, unique_name: UniqueName, code: int
) -> None:
    name = unique_name("parcels")
    parcels.move_all(["x", "y"], times=3)

    with FaultyBroker(["parcels"]) as broker:
        broker.refuse_next([code] * 2)
        with running(RelayLoop(parcel_outbox("parcels", name), settings_for(store_dsn, broker.bootstrap))):
            eventually(lambda: checkpoint_of(store_dsn, name).position == 6, within=40)
        found = published(broker.bootstrap, "parcels")

    assert in_order(found, "x", 3)
    assert in_order(found, "y", 3)
    assert count(parcels.connection, name) == (0, 0)


# --- The checkpoint that cannot be written --------------------------------------------------------------

FAIL_THREE_TIMES = """
    CREATE SEQUENCE attempts;
    CREATE FUNCTION fail_three_times() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('attempts') <= 3 THEN RAISE EXCEPTION 'not now'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_three_times BEFORE UPDATE OF position ON relay_checkpoints
        FOR EACH ROW EXECUTE FUNCTION fail_three_times();
"""


def test_a_checkpoint_that_cannot_be_written_is_tried_again_with_growing_pauses_and_counted(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, topic = unique_name("parcels"), topics("parcels")
    parcels.connection.execute(FAIL_THREE_TIMES)
    parcels.move("a")
    failures = metrics.RELAY_CHECKPOINT_FAILURES.labels(name)

    with running(
        RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap), one(publisher := Recorder()))
    ):
        eventually(lambda: checkpoint_of(store_dsn, name).position == 1)

    assert steps(publisher.messages) == [1]
    assert len(publisher.calls) == 4
    assert failures._value.get() == 3
    pauses = [later - earlier for earlier, later in zip(publisher.times, publisher.times[1:], strict=False)]
    assert min(pauses) > 0.05
