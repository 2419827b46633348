"""Topics are read from any place to their end: in the order of time, nothing skipped, nothing moved."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from infrastructure.record import Record
from projections.rebuilding import topic_reader
from projections.rebuilding.topic_reader import RecordsGone, TopicReader, TopicsUnreadable, reading
from tests.support.group import delete_records
from tests.support.kafka import Kafka, MakeTopic, grow
from tests.support.projecting import settings
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

MUCH = 2**30
NOW = time.time_ns() // 1_000_000
"""Milliseconds. Records of another time might be deleted by the broker."""


@pytest.fixture
def read(kafka: Kafka) -> Iterator[Callable[..., TopicReader]]:
    with ExitStack() as cleanup:
        yield lambda *topics: cleanup.enter_context(reading(settings(kafka.bootstrap), "nobody-joins-this", topics))


@pytest.fixture
def producer(kafka: Kafka) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


def to_the_end(reader: TopicReader, positions: list[int], most: int = 7) -> tuple[list[Record], list[int]]:
    records: list[Record] = []
    while True:
        read = reader.read(positions, most, MUCH)
        records += [record for _, record in read.records]
        positions = list(read.reached)
        if read.ended:
            return records, positions


def times(producer: Producer, topic: str, partition: int, *timestamps: int) -> None:
    for each in timestamps:
        producer.produce(topic, b"%d" % each, partition=partition, timestamp=NOW + each)
    assert producer.flush(20) == 0


def test_partitions_come_together_by_time_however_unevenly_they_are_filled(
    read: Callable[..., TopicReader], producer: Producer, topics: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "MOST_WAITING", 60)
    monkeypatch.setattr(topic_reader, "LEAST_WAITING", 1)  # so that some are paused, and go on later
    many, few = topics("many", partitions=2), topics("few")
    times(producer, many, 0, *range(1_000, 1_900))
    times(producer, many, 1, *range(1_450, 1_460))
    times(producer, few, 0, *range(900, 2_000, 100))
    reader = read(few, many)
    assert reader.partitions == [(few, 0), (many, 0), (many, 1)]
    records, reached = to_the_end(reader, [0, 0, 0])
    seen = [(record.timestamp_ms or 0) - NOW for record in records]
    assert seen == sorted([*range(1_000, 1_900), *range(1_450, 1_460), *range(900, 2_000, 100)])
    assert reached == [11, 900, 10]
    times(producer, few, 0, 2_000)
    records, reached = to_the_end(reader, reached)
    assert [record.timestamp_ms for record in records] == [NOW + 2_000]
    again, _ = to_the_end(reader, [11, 898, 10])
    assert [(each.topic, each.offset) for each in again] == [(many, 898), (many, 899), (few, 11)]


def test_it_ends_before_an_open_transaction_and_passes_what_was_undone(
    read: Callable[..., TopicReader], kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    topic = topics("orders")
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "transactional.id": unique_name("producer")}
    )
    producer.init_transactions(20)
    reader = read(topic)
    for value, ends in ((b"kept", producer.commit_transaction), (b"undone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(20) == 0
        before = len(to_the_end(reader, [0])[0])
        assert before == (0 if value == b"kept" else 1)
        ends(20)
    eventually(lambda: to_the_end(reader, [0])[1] == [4], within=30)  # behind the marks, which come a little later
    assert [record.value for record in to_the_end(reader, [0])[0]] == [b"kept"]


def test_what_was_deleted_is_not_skipped(
    read: Callable[..., TopicReader], kafka: Kafka, producer: Producer, topics: MakeTopic
) -> None:
    topic = topics("orders")
    times(producer, topic, 0, *range(10))
    delete_records(kafka.bootstrap, topic, before=4)
    reader = read(topic)
    assert reader.offsets() == [(4, 10)]
    with pytest.raises(RecordsGone, match=f"{topic}/0 from offset 3"):
        to_the_end(reader, [3])


def test_a_missing_topic_and_more_partitions_are_noticed(
    read: Callable[..., TopicReader], kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    with pytest.raises(TopicsUnreadable, match="UNKNOWN_TOPIC_OR_PART"):
        read(unique_name("missing"))
    topic = topics("orders")
    reader = read(topic)
    assert not reader.has_changed()
    grow(kafka.bootstrap, topic, 2)
    assert reader.has_changed()
