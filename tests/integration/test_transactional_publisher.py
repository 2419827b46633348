"""Effectively once: messages and position are committed together, and by one producer of a shard at a time."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event, Timer

import pytest
from confluent_kafka import Consumer, TopicPartition

from infrastructure.consumer_lag import group_lag
from infrastructure.kafka_faults import Fault
from infrastructure.publisher import Mark, PublishFailed
from tests.support.apache_kafka import RealKafka
from tests.support.kafka import Kafka, MakeTopic, create_topic
from tests.support.outages import breakable_kafka, frozen
from tests.support.published import published
from tests.support.transactions import (
    ANCHOR,
    NEVER,
    START,
    committed,
    incompressible,
    nothing,
    numbered,
    publish,
    publisher,
    resume,
    settings,
    with_value,
)

pytestmark = pytest.mark.kafka

UniqueName = Callable[[str], str]


@pytest.fixture(scope="module")
def breakable() -> Iterator[RealKafka]:
    """Its topics are made beforehand: for a while after a freeze it makes none."""
    with breakable_kafka() as broker:
        for topic in ("hangs", "stops", "restarts"):
            create_topic(broker.bootstrap, topic)
        yield broker


# --- What is committed ---------------------------------------------------------------------------------


def test_messages_and_position_are_committed_together_and_the_next_producer_goes_on_behind_them(
    kafka: Kafka, topics: MakeTopic
) -> None:
    topic = topics("orders", partitions=3)
    first = publisher(kafka.bootstrap, topic)
    assert resume(first) == START
    assert publish(first, numbered(topic, range(1, 6)), Mark(5, 0, ANCHOR)) == 5
    assert publish(first, numbered(topic, range(6, 8)), Mark(9, 0, ANCHOR)) == 2

    assert resume(publisher(kafka.bootstrap, topic)) == Mark(9, 0, ANCHOR)
    assert committed(kafka.bootstrap, topic) == [b"%d" % n for n in range(1, 8)]


def test_many_events_of_one_key_go_in_one_transaction_in_order(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders", partitions=3)
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)

    assert publish(subject, numbered(topic, range(1_000))) == 1_000

    assert committed(kafka.bootstrap, topic) == [b"%d" % n for n in range(1_000)]


def test_what_was_sent_and_not_committed_is_not_there_nor_is_its_position(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    publish(subject, numbered(topic, range(3)), Mark(3))

    subject.send(numbered(topic, range(3, 6)), Mark(6), nothing).drop()

    assert resume(subject) == Mark(3)
    assert committed(kafka.bootstrap, topic) == [b"0", b"1", b"2"]


class NotAllowed(Exception):
    pass


def test_once_its_turn_raises_nothing_is_committed(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    sending = subject.send(numbered(topic, range(3)), Mark(3), nothing)

    def turn() -> None:
        raise NotAllowed

    with pytest.raises(NotAllowed):
        sending.wait(NEVER, turn)

    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []


def test_after_a_failure_it_wants_to_be_resumed(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)

    with pytest.raises(RuntimeError, match="resume"):
        subject.send(numbered(topic, range(3)), Mark(3), nothing)


def test_no_message_needs_no_transaction(kafka: Kafka, topics: MakeTopic) -> None:
    subject = publisher(kafka.bootstrap, topics("orders"))
    resume(subject)

    assert publish(subject, [], Mark(7)) == 0
    assert resume(subject) == START


# --- Whose position counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "goes_on_from"),
    [
        (Mark(4, 2), Mark(5, 2, ANCHOR)),
        (Mark(6, 2), Mark(6, 2)),
        (Mark(3, 3), Mark(3, 3)),
        (Mark(3, 1), Mark(3, 1)),
    ],
    ids=["Kafka is ahead", "the database is ahead", "an operator rewound it", "the database was restored"],
)
def test_the_higher_position_counts_but_only_within_a_generation(
    kafka: Kafka, topics: MakeTopic, stored: Mark, goes_on_from: Mark
) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    publish(subject, numbered(topic, range(1, 6)), Mark(5, 2, ANCHOR))

    assert resume(subject, stored) == goes_on_from


def test_a_successor_fences_whoever_was_before_it_and_what_that_one_had_under_way_is_undone(
    kafka: Kafka, topics: MakeTopic
) -> None:
    topic = topics("orders")
    zombie, successor = publisher(kafka.bootstrap, topic), publisher(kafka.bootstrap, topic)
    resume(zombie)
    under_way = zombie.send(numbered(topic, range(5)), Mark(5), nothing)

    assert resume(successor) == START
    assert publish(successor, numbered(topic, range(5)), Mark(5)) == 5
    with pytest.raises(PublishFailed) as failed:
        under_way.wait(NEVER, nothing)

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.PRODUCER)
    assert committed(kafka.bootstrap, topic) == [b"%d" % n for n in range(5)]


# --- Refused for good ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "limit"), [(1_048_700, 1_048_588), (20_000, 10_000)], ids=["by client", "by broker"])
def test_a_message_that_is_too_large_is_named_among_its_neighbours_and_none_of_them_is_committed(
    kafka: Kafka, topics: MakeTopic, size: int, limit: int
) -> None:
    topic = topics("limited", config={"max.message.bytes": str(limit)})
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    around = numbered(topic, range(40))
    large = with_value(topic, incompressible(size))

    with pytest.raises(PublishFailed) as failed:
        publish(subject, [*around[:20], large, *around[20:]], Mark(41))

    assert (failed.value.acknowledged, failed.value.index) == (0, 20)
    assert (failed.value.error, failed.value.fault) == ("MSG_SIZE_TOO_LARGE", Fault.MESSAGE)
    assert committed(kafka.bootstrap, topic) == []
    assert resume(subject) == START
    assert publish(subject, around, Mark(41)) == 40
    assert committed(kafka.bootstrap, topic) == [each.value for each in around]


def test_messages_that_are_too_large_only_together_are_committed_in_order(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("limited", config={"max.message.bytes": "2000"})
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    values = [b"%d " % n + incompressible(1_000 + n) for n in range(20)]

    assert publish(subject, [with_value(topic, value) for value in values], Mark(20)) == 20

    assert committed(kafka.bootstrap, topic) == values


def test_a_turn_that_raises_before_the_second_attempt_is_heard(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("limited", config={"max.message.bytes": "2000"})
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    values = [b"%d " % n + incompressible(1_000 + n) for n in range(20)]
    sending = subject.send([with_value(topic, value) for value in values], Mark(20), nothing)

    def turn() -> None:
        if not subject.producer.is_made:  # the first attempt's is closed
            raise NotAllowed

    with pytest.raises(NotAllowed):
        sending.wait(NEVER, turn)

    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []


def test_parked_events_below_the_kept_position_get_their_second_attempt(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("limited", config={"max.message.bytes": "2000"})
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    publish(subject, numbered(topic, range(1)), Mark(30, 0, ANCHOR))
    values = [b"%d " % n + incompressible(1_000 + n) for n in range(20)]

    assert publish(subject, [with_value(topic, value) for value in values], Mark(30, 0, ANCHOR)) == 20

    assert resume(subject) == Mark(30, 0, ANCHOR)
    assert committed(kafka.bootstrap, topic) == [b"0", *values]


def test_an_empty_key_never_reaches_kafka(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("keys")
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)

    with pytest.raises(PublishFailed) as failed:
        publish(subject, [*numbered(topic, range(2)), *numbered(topic, range(1), key="")])

    assert (failed.value.acknowledged, failed.value.index, failed.value.fault) == (0, 2, Fault.MESSAGE)
    assert published(kafka.bootstrap, topic)[2:] == []
    assert committed(kafka.bootstrap, topic) == []


def test_a_missing_topic_is_no_fault_of_the_message(kafka: Kafka, topics: MakeTopic) -> None:
    subject = publisher(kafka.bootstrap, topics("orders"))
    resume(subject)

    with pytest.raises(PublishFailed) as failed:
        publish(subject, numbered("no-such-topic-at-all", range(2)))

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.TOPIC)


# --- Kafka away ----------------------------------------------------------------------------------------


def test_a_restart_of_the_broker_in_mid_transaction_is_waited_out(breakable: RealKafka) -> None:
    topic = "restarts"
    subject = publisher(breakable.bootstrap, topic, publish_timeout=60.0)
    resume(subject)
    sending = subject.send(numbered(topic, range(500)), Mark(500), nothing)
    breakable.restart()

    position = 500
    try:
        assert sending.wait(NEVER, nothing) == 500
    except PublishFailed as failed:
        assert failed.acknowledged == 0
        position = resume(subject).position
    if position < 500:
        publish(subject, numbered(topic, range(500)), Mark(500))
    assert committed(breakable.bootstrap, topic) == [b"%d" % n for n in range(500)]


def test_told_to_stop_while_kafka_hangs_it_ends_in_time_and_says_nothing_is_published(breakable: RealKafka) -> None:
    topic = "stops"
    subject = publisher(breakable.bootstrap, topic, stop_grace=3.0)
    resume(subject)
    stop = Event()

    with frozen(breakable):
        started = time.monotonic()
        sending = subject.send(numbered(topic, range(3)), Mark(3), nothing)
        Timer(0.2, stop.set).start()
        assert sending.wait(stop, nothing) == 0
        subject.close()
        assert time.monotonic() - started < 10


def test_while_kafka_hangs_nothing_waits_without_end_or_without_a_turn_and_afterwards_each_is_there_once(
    breakable: RealKafka,
) -> None:
    topic = "hangs"
    subject = publisher(breakable.bootstrap, topic, publish_timeout=1.5, stop_grace=4.0)
    resume(subject)
    assert publish(subject, numbered(topic, range(3)), Mark(3)) == 3
    turns: list[float] = [time.monotonic()]

    def turn() -> None:
        turns.append(time.monotonic())

    with frozen(breakable):
        with pytest.raises(PublishFailed) as failed:
            subject.send(numbered(topic, range(3, 6)), Mark(6), turn).wait(NEVER, turn)
        assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.BROKER)
        turns.append(time.monotonic())
        with pytest.raises(PublishFailed) as failed:
            subject.resume(Mark(3), turn)
        assert failed.value.fault is Fault.BROKER
    assert max(later - earlier for earlier, later in pairwise(turns)) < 5

    successor = publisher(breakable.bootstrap, topic)
    done = resume(successor, Mark(3)).position
    assert done in (3, 6)  # nobody knew what became of the commit
    if done == 3:
        publish(successor, numbered(topic, range(3, 6)), Mark(6))
    assert committed(breakable.bootstrap, topic) == [b"%d" % n for n in range(6)]


# --- Beside transactions --------------------------------------------------------------------------------


def test_the_marks_of_transactions_in_a_topic_are_not_taken_for_records_that_wait(
    kafka: Kafka, topics: MakeTopic, unique_name: UniqueName
) -> None:
    topic, group = topics("orders"), unique_name("group")
    subject = publisher(kafka.bootstrap, topic)
    resume(subject)
    publish(subject, numbered(topic, range(3)), Mark(3))
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()

    assert group_lag(settings(kafka.bootstrap), group, [topic]).lag == 0
