"""Kafka has a message, or the publisher says so; and nothing of a key overtakes what came before it."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Event, Timer

import pytest
from confluent_kafka.admin import AdminClient

from infrastructure.kafka_faults import Fault
from infrastructure.publisher import KafkaPublisher, Mark, OutgoingMessage, PublishFailed
from infrastructure.settings import Settings
from tests.support import faulty_broker
from tests.support.apache_kafka import RealKafka
from tests.support.faulty_broker import FaultyBroker
from tests.support.kafka import Kafka, MakeTopic, create_topic
from tests.support.outages import breakable_kafka, frozen
from tests.support.published import Published, published

HEADERS = (("ce_id", b"evt_1"), ("content-type", b"application/json"))
NEVER = Event()
UniqueName = Callable[[str], str]


def message(topic: str, key: str, value: bytes = b"{}", position: int = 1) -> OutgoingMessage:
    return OutgoingMessage(topic, key.encode(), value, HEADERS, position)


def numbered(topic: str, count: int, key: str = "x") -> list[OutgoingMessage]:
    return [message(topic, key, b"%d" % n, n) for n in range(1, count + 1)]


def of_many_keys(topic: str, count: int) -> list[OutgoingMessage]:
    return [message(topic, f"key-{n}", b"%d" % n, n) for n in range(1, count + 1)]


def values(found: Iterable[Published]) -> list[bytes]:
    return [each.value for each in found]


def first_appearances(found: Iterable[Published]) -> list[bytes]:
    return list(dict.fromkeys(values(found)))


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def publisher(
    bootstrap: str, *, publish_timeout: float = 20.0, stop_grace: float = 10.0, **changes: object
) -> KafkaPublisher:
    settings = Settings(kafka_bootstrap_servers=bootstrap, publish_timeout=publish_timeout, stop_grace=stop_grace)
    return KafkaPublisher(settings, {name.replace("_", "."): value for name, value in changes.items()})


def publish(
    subject: KafkaPublisher, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None] = lambda: None
) -> int:
    return subject.send(messages, Mark(0), turn).wait(stop, turn)


@pytest.fixture(scope="module")
def breakable() -> Iterator[RealKafka]:
    with breakable_kafka() as broker:
        yield broker


# --- What arrives --------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_in_the_topic_byte_for_byte(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("bytes")
    sent = [message(topic, f"ключ-{n}", b'{"n":%d}' % n) for n in range(3)]

    assert publish(publisher(kafka.bootstrap), sent, NEVER) == 3

    assert [(each.key, each.value, each.headers) for each in published(kafka.bootstrap, topic)] == [
        (each.key, each.value, each.headers) for each in sent
    ]


def test_events_of_one_key_follow_each_other_however_many_there_are(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders", partitions=3)
    sent = [message(topic, f"ord_{n % 3}", b"%d" % n) for n in range(90)]

    assert publish(publisher(kafka.bootstrap), sent, NEVER) == 90

    for key in (b"ord_0", b"ord_1", b"ord_2"):
        assert [each.value for each in published(kafka.bootstrap, topic) if each.key == key] == [
            each.value for each in sent if each.key == key
        ]


def test_nothing_to_publish_is_fine(kafka: Kafka) -> None:
    assert publish(publisher(kafka.bootstrap), [], NEVER) == 0


def java_partition(key: bytes, partitions: int) -> int:
    """Kafka's documented default for keyed records: murmur2 with its seed, made positive, modulo the count."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    hashed = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = hashed * multiplier & mask ^ word
    if key[whole:]:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return ((hashed ^ hashed >> 15) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("partitions", [3, 6])
def test_an_order_id_goes_to_the_partition_that_java_clients_would_choose(
    kafka: Kafka, topics: MakeTopic, partitions: int
) -> None:
    topic = topics("partitioned", partitions=partitions)
    keys = [f"ord_{n * 37}" for n in range(100)]

    publish(publisher(kafka.bootstrap), [message(topic, key) for key in keys], NEVER)

    found = {each.key: each.partition for each in published(kafka.bootstrap, topic)}
    assert found == {key.encode(): java_partition(key.encode(), partitions) for key in keys}


# --- Refused for good ----------------------------------------------------------------------------------


def test_an_empty_key_never_reaches_kafka(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("keys")

    with pytest.raises(PublishFailed) as failed:
        publish(publisher(kafka.bootstrap), [message(topic, "a"), message(topic, ""), message(topic, "b")], NEVER)

    assert (failed.value.acknowledged, failed.value.index, failed.value.fault) == (1, 1, Fault.MESSAGE)
    assert [each.key for each in published(kafka.bootstrap, topic)] == [b"a"]


@pytest.mark.parametrize("size", [999_000, 999_900, 1_000_000, 1_048_700])
def test_a_large_message_is_delivered_or_refused_at_once_and_what_came_before_it_is_delivered(
    kafka: Kafka, topics: MakeTopic, size: int
) -> None:
    topic = topics("large")
    sent = [message(topic, "x", b"before"), message(topic, "x", incompressible(size)), message(topic, "x", b"after")]
    started = time.monotonic()

    try:
        acknowledged = publish(publisher(kafka.bootstrap), sent, NEVER)
    except PublishFailed as failed:
        assert (failed.fault, failed.error, failed.index) == (Fault.MESSAGE, "MSG_SIZE_TOO_LARGE", 1)
        acknowledged = failed.acknowledged

    assert time.monotonic() - started < 10
    assert acknowledged == (3 if size < 999_999 else 1)
    assert values(published(kafka.bootstrap, topic)) == [each.value for each in sent[:acknowledged]]


@pytest.mark.kafka
@pytest.mark.parametrize("before", [0, 1], ids=["the first ever", "not the first"])
def test_nothing_of_the_key_passes_a_message_that_the_broker_refuses_however_late_we_hear_of_it(
    kafka: Kafka, topics: MakeTopic, before: int
) -> None:
    topic = topics("limited", config={"max.message.bytes": "300000"})
    earlier, too_large, later = (
        numbered(topic, before),
        message(topic, "x", incompressible(400_000)),
        [message(topic, "x", b"later")] * 300,
    )

    with pytest.raises(PublishFailed) as failed:
        publish(publisher(kafka.bootstrap), [*earlier, too_large, *later], NEVER, turn=lambda: time.sleep(0.5))

    assert (failed.value.fault, failed.value.error) == (Fault.MESSAGE, "MSG_SIZE_TOO_LARGE")
    assert (failed.value.acknowledged, failed.value.index) == (before, before)
    assert published(kafka.bootstrap, topic)[before:] == []


@pytest.mark.kafka
def test_a_refused_message_leaves_a_publisher_that_works(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("limited", config={"max.message.bytes": "300000"})
    subject = publisher(kafka.bootstrap)
    with pytest.raises(PublishFailed):
        publish(subject, [message(topic, "x", incompressible(400_000))], NEVER)

    assert publish(subject, numbered(topic, 5), NEVER) == 5
    assert values(published(kafka.bootstrap, topic)) == [b"1", b"2", b"3", b"4", b"5"]


# --- Refused for now -----------------------------------------------------------------------------------


def test_a_refusal_that_passes_keeps_the_order() -> None:
    with FaultyBroker(["orders"]) as broker:
        broker.refuse_next([faulty_broker.NOT_ENOUGH_REPLICAS] * 2)

        assert publish(publisher(broker.bootstrap), numbered("orders", 3), NEVER) == 3

        assert values(published(broker.bootstrap, "orders")) == [b"1", b"2", b"3"]


def test_a_dead_producer_is_replaced_and_goes_on_in_order() -> None:
    with FaultyBroker(["orders"]) as broker:
        subject = publisher(broker.bootstrap)
        assert publish(subject, numbered("orders", 2), NEVER) == 2
        broker.refuse_next([faulty_broker.OUT_OF_ORDER_SEQUENCE_NUMBER])

        with pytest.raises(PublishFailed) as failed:
            publish(subject, numbered("orders", 5)[2:], NEVER)

        assert failed.value.fault is Fault.PRODUCER
        assert failed.value.acknowledged == 0
        assert publish(subject, numbered("orders", 5)[2:], NEVER) == 3
        assert first_appearances(published(broker.bootstrap, "orders")) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_forbidden_topic_is_no_fault_of_the_message() -> None:
    with FaultyBroker(["orders"]) as broker:
        subject = publisher(broker.bootstrap)
        broker.refuse_next([faulty_broker.TOPIC_AUTHORIZATION_FAILED])

        with pytest.raises(PublishFailed) as failed:
            publish(subject, numbered("orders", 3), NEVER)

        assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.TOPIC)
        assert publish(subject, numbered("orders", 3), NEVER) == 3


def test_a_missing_topic_is_no_fault_of_the_message_and_does_not_come_to_life_by_a_typo() -> None:
    with FaultyBroker(["orders"]) as broker:  # it creates topics for every client that asks for it
        with pytest.raises(PublishFailed) as failed:
            publish(publisher(broker.bootstrap), numbered("oders", 3), NEVER)

        assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.TOPIC)
        assert list(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics) == ["orders"]


def test_a_full_queue_is_waited_out_until_the_broker_is_back(breakable: RealKafka, unique_name: UniqueName) -> None:
    topic = unique_name("orders")
    create_topic(breakable.bootstrap, topic)
    subject = publisher(breakable.bootstrap, publish_timeout=60, queue_buffering_max_messages=10)
    breakable.stop()
    back = Timer(3, breakable.start)
    back.start()

    assert publish(subject, of_many_keys(topic, 50), NEVER) == 50

    back.join()
    assert values(published(breakable.bootstrap, topic)) == [b"%d" % n for n in range(1, 51)]


def test_messages_without_a_report_count_as_not_published_and_publishing_them_again_keeps_the_order(
    breakable: RealKafka, unique_name: UniqueName
) -> None:
    topic = unique_name("orders")
    create_topic(breakable.bootstrap, topic)
    subject = publisher(breakable.bootstrap, publish_timeout=1.5)
    assert publish(subject, numbered(topic, 5), NEVER) == 5

    with frozen(breakable), pytest.raises(PublishFailed) as failed:
        publish(subject, numbered(topic, 10)[5:], NEVER)

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.BROKER)
    assert publish(publisher(breakable.bootstrap), numbered(topic, 10)[5:], NEVER) == 5
    found = published(breakable.bootstrap, topic)
    assert first_appearances(found) == [b"%d" % n for n in range(1, 11)]
    assert len({(each.key, each.headers) for each in found}) == 1


# --- Told to stop --------------------------------------------------------------------------------------


def test_told_to_stop_with_reports_outstanding_it_ends_in_time_and_counts_only_what_is_known(
    breakable: RealKafka, unique_name: UniqueName
) -> None:
    topic = unique_name("orders")
    create_topic(breakable.bootstrap, topic)
    subject = publisher(breakable.bootstrap, stop_grace=2)
    assert publish(subject, numbered(topic, 5), NEVER) == 5
    stop = Event()

    with frozen(breakable):
        started = time.monotonic()
        Timer(0.2, stop.set).start()
        assert publish(subject, numbered(topic, 5), stop) == 0
        subject.close()
        assert time.monotonic() - started < 4


def test_told_to_stop_nothing_follows_what_is_under_way(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders")
    stop = Event()
    stop.set()

    assert publish(publisher(kafka.bootstrap), numbered(topic, 5), stop) == 1
    assert values(published(kafka.bootstrap, topic)) == [b"1"]


class NotAllowed(Exception):
    pass


@pytest.mark.parametrize("count", [5, 50], ids=["while it waits for reports", "while the queue is full"])
def test_once_its_turn_raises_nothing_more_is_sent(breakable: RealKafka, unique_name: UniqueName, count: int) -> None:
    topic = unique_name("orders")
    create_topic(breakable.bootstrap, topic)
    allowed_until = time.monotonic() + 1

    def turn() -> None:
        if time.monotonic() > allowed_until:
            raise NotAllowed

    subject = publisher(breakable.bootstrap, queue_buffering_max_messages=10)
    breakable.stop()
    with pytest.raises(NotAllowed):
        publish(subject, of_many_keys(topic, count), NEVER, turn)
    breakable.start()
    assert publish(subject, numbered(topic, 1, key="a later one"), NEVER) == 1

    assert [each.key for each in published(breakable.bootstrap, topic)] == [b"a later one"]


def test_it_closes_in_time_whatever_the_broker_does(breakable: RealKafka, unique_name: UniqueName) -> None:
    topic = unique_name("orders")
    create_topic(breakable.bootstrap, topic)
    subject = publisher(breakable.bootstrap)
    publish(subject, numbered(topic, 1), NEVER)

    with frozen(breakable):
        started = time.monotonic()
        subject.close()
        assert time.monotonic() - started < 5


# --- After a fork --------------------------------------------------------------------------------------


def test_a_child_process_publishes_with_a_producer_of_its_own(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap)
    assert publish(subject, numbered(topic, 1), NEVER) == 1

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        published_by_the_child = publish(subject, numbered(topic, 3)[1:], NEVER)
        os._exit(0 if published_by_the_child == 2 else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert publish(subject, numbered(topic, 4)[3:], NEVER) == 1
    assert values(published(kafka.bootstrap, topic)) == [b"1", b"2", b"3", b"4"]
