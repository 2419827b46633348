"""Effectively once: messages and position are committed together, and by one producer of a shard at a time."""

import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event, Timer
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from infrastructure.consumer_lag import group_lag
from infrastructure.kafka_faults import Fault
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed
from infrastructure.settings import Settings
from infrastructure.transactional_publisher import TransactionalPublisher
from tests.support.apache_kafka import RealKafka
from tests.support.kafka import Kafka, MakeTopic, create_topic
from tests.support.outages import breakable_kafka, frozen
from tests.support.published import published
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

NEVER = Event()
ANCHOR = bytes(range(32))
START = Mark(0)
UniqueName = Callable[[str], str]


def nothing() -> None:
    """A turn that asks for nothing."""


def numbered(topic: str, numbers: range, key: str = "x") -> list[OutgoingMessage]:
    return [OutgoingMessage(topic, key.encode(), b"%d" % n, (("ce_id", b"evt_%d" % n),), n) for n in numbers]


def with_value(topic: str, value: bytes) -> OutgoingMessage:
    return OutgoingMessage(topic, b"x", value, (), 1)


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def settings(bootstrap: str, publish_timeout: float = 20.0, stop_grace: float = 15.0) -> Settings:
    return Settings(kafka_bootstrap_servers=bootstrap, publish_timeout=publish_timeout, stop_grace=stop_grace)


def publisher(bootstrap: str, topic: str, **values: float) -> TransactionalPublisher:
    """Named like its topic, so that two of them are of one shard."""
    return TransactionalPublisher(settings(bootstrap, **values), topic, [topic])


def publish(subject: TransactionalPublisher, messages: list[OutgoingMessage], covers: Mark = START) -> int:
    return subject.send(messages, covers, nothing).wait(NEVER, nothing)


def resume(subject: TransactionalPublisher, stored: Mark = START) -> Mark:
    """A broker that has just started says for a while that it is not ready."""

    def ready() -> Mark | None:
        try:
            return subject.resume(stored, nothing)
        except PublishFailed as failed:
            assert failed.fault is Fault.BROKER
            return None

    mark = eventually(ready, within=60)
    assert mark is not None
    return mark


def committed(bootstrap: str, topic: str) -> list[bytes]:
    return [each.value for each in published(bootstrap, topic, isolation="read_committed")]


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


# --- What the client says late, or not at all ------------------------------------------------------------


class Watched(Producer):
    """The real client. Keeps whom it is to report each message to, so that a test can report in its place."""

    reports: list[Callable[[KafkaError, object], None]]

    def produce(self, *message: Any, on_delivery: Callable[..., None], **others: Any) -> None:
        self.reports.append(on_delivery)
        super().produce(*message, on_delivery=on_delivery, **others)


class Undelivered:
    """What a report of the client is about."""

    def __init__(self, message: OutgoingMessage) -> None:
        self.topic, self.key, self.value = (lambda: message.topic), (lambda: message.key), (lambda: message.value)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "reports", [], raising=False)
    monkeypatch.setattr("infrastructure.producer.Producer", Watched)
    return Watched


def with_a_short_queue(kafka: Kafka, topic: str) -> TransactionalPublisher:
    """A batch of more than ten messages is handed over in parts."""
    return TransactionalPublisher(settings(kafka.bootstrap), topic, [topic], {"queue.buffering.max.messages": 10})


@pytest.mark.parametrize("error", [KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_late_report_of_a_producer_that_was_given_up_does_not_cut_its_successors_transaction_short(
    kafka: Kafka, topics: MakeTopic, watched: type[Watched], error: int
) -> None:
    topic = topics("orders")
    subject = with_a_short_queue(kafka, topic)
    resume(subject)
    given_up = numbered(topic, range(500, 503))
    subject.send(given_up, Mark(503), nothing).drop()
    resume(subject)
    sending = subject.send(numbered(topic, range(100)), Mark(100), nothing)

    def turn() -> None:
        watched.reports[0](KafkaError(error), Undelivered(given_up[0]))

    assert sending.wait(NEVER, turn) == 100
    assert committed(kafka.bootstrap, topic) == [b"%d" % n for n in range(100)]


def test_what_was_not_handed_over_to_the_end_is_never_committed(
    kafka: Kafka, topics: MakeTopic, watched: type[Watched]
) -> None:
    topic = topics("orders")
    subject = with_a_short_queue(kafka, topic)
    resume(subject)
    messages = numbered(topic, range(100))
    sending = subject.send(messages, Mark(100), nothing)

    def turn() -> None:
        watched.reports[0](KafkaError(KafkaError._MSG_TIMED_OUT), Undelivered(messages[0]))

    with pytest.raises(PublishFailed) as failed:
        sending.wait(NEVER, turn)

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.BROKER)
    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []


class LosesTheMark(Producer):
    """Its thread ends of something that is no error of Kafka's."""

    def send_offsets_to_transaction(self, *_: Any) -> None:
        raise SystemError("the client raised its own death")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_the_position_no_message_is_committed(
    kafka: Kafka, topics: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)
    with monkeypatch.context() as patched:
        patched.setattr("infrastructure.producer.Producer", LosesTheMark)
        resume(subject)
        with pytest.raises(PublishFailed) as failed:
            publish(subject, numbered(topic, range(3)), Mark(3))

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.PRODUCER)
    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []


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
