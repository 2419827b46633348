"""What Kafka does not take: the relay waits or is held, visibly, in order, and goes on by itself."""

import random
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from infrastructure import metrics
from infrastructure.relay_loop import RelayLoop
from tests.support import faulty_broker
from tests.support.faulty_broker import FaultyBroker
from tests.support.kafka import Kafka, MakeTopic, delete_topic
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relays import Recorder, checkpoint_of, in_order, one, running, settings_for, state, steps
from tests.support.wait import eventually

UniqueName = Callable[[str], str]


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


def note_of(size: int) -> str:
    """A note that compresses badly: hexadecimal digits of random bytes take half their length at best."""
    return random.randbytes(size // 2).hex()


def limit_messages(kafka: Kafka, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(20)


# --- Too large (permanent) -----------------------------------------------------------------------------


def test_a_message_too_large_for_any_broker_holds_the_relay_visibly_and_nothing_is_lost_or_passed(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, topic = unique_name("parcels"), topics("parcels", partitions=3)
    before = parcels.move("x")
    held = parcels.move("x", note="n" * 1_048_700)
    parcels.move("x")

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))):
        eventually(lambda: checkpoint_of(store_dsn, name).held_position == held)
        eventually(lambda: state(name) == "held")

    status = checkpoint_of(store_dsn, name)
    assert (status.position, status.held_reason) == (before, "Kafka refuses it: MSG_SIZE_TOO_LARGE")
    assert steps(published(kafka.bootstrap, topic), "x") == [1]


@pytest.mark.kafka
def test_a_message_that_the_broker_refuses_holds_the_relay_until_the_topic_allows_it(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, topic = unique_name("parcels"), topics("parcels", partitions=3, config={"max.message.bytes": "300000"})
    parcels.move_all(["x", "y"], times=1)
    held = parcels.move("x", note=note_of(900_000))
    parcels.move_all(["x", "y"], times=2)

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))):
        eventually(lambda: checkpoint_of(store_dsn, name).held_position == held, within=20)
        assert steps(published(kafka.bootstrap, topic), "x") == [1]
        limit_messages(kafka, topic, 1_000_000)
        eventually(lambda: len(steps(published(kafka.bootstrap, topic), "x")) == 4, within=40)
        eventually(lambda: checkpoint_of(store_dsn, name).held_position is None)

    found = published(kafka.bootstrap, topic)
    assert in_order(found, "x", 4)
    assert in_order(found, "y", 3)


@pytest.mark.kafka
def test_messages_that_are_too_large_only_together_are_no_poison(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    unique_name: UniqueName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, topic = unique_name("parcels"), topics("parcels", config={"max.message.bytes": "20000"})
    for number in range(20):
        parcels.move(f"p{number}", note=note_of(4_000))

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, kafka.bootstrap))):
        eventually(lambda: len({each.key for each in published(kafka.bootstrap, topic)}) == 20, within=40)
        eventually(lambda: checkpoint_of(store_dsn, name).position == 20)
    assert checkpoint_of(store_dsn, name).held_position is None
    assert "the relay cannot pass an event" not in caplog.messages


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
    assert checkpoint_of(store_dsn, name).held_position is None


def test_a_forbidden_topic_is_waited_for_visibly_and_then_all_arrive_in_order(
    store_dsn: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name = unique_name("parcels")
    parcels.move_all(["x", "y"], times=3)

    with FaultyBroker(["parcels"]) as broker:
        broker.refuse_next([faulty_broker.TOPIC_AUTHORIZATION_FAILED] * 5)
        with running(RelayLoop(parcel_outbox("parcels", name), settings_for(store_dsn, broker.bootstrap))):
            eventually(lambda: state(name) == "waiting_for_kafka")
            assert checkpoint_of(store_dsn, name).held_position is None
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
