"""What Kafka's client may leave out, or bring at the wrong time, is read once more by whoever reads topics whole."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from infrastructure.settings import Settings
from projections.rebuilding import topic_reader
from projections.rebuilding.topic_reader import TopicReader, TopicsUnreadable
from tests.support.scripted_client import TOPIC, ScriptedMessage

END = 7


class Message(ScriptedMessage):
    """A record, or the partition's end, or another error."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        super().__init__(offset)
        self._error = None if error is None else KafkaError(error)

    def error(self) -> KafkaError | None:
        return self._error


class Client:
    """In the place of Kafka's: it brings one script after another, the next one when it is sent elsewhere."""

    def __init__(self, *_: object, **__: object) -> None:
        self.scripts: deque[Sequence[Message]] = deque()
        self.now: deque[Message] = deque()
        self.sent_to: list[int] = []

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.seek(places[0])

    def seek(self, place: TopicPartition) -> None:
        self.sent_to.append(place.offset)
        self.now = deque(self.scripts.popleft())

    def resume(self, _places: object) -> None: ...

    def poll(self, _wait: float) -> Message | None:
        return self.now.popleft() if self.now else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        return [self.now.popleft() for _ in range(min(most, len(self.now)))]

    def close(self) -> None: ...


class Admin:
    """Knows of one partition with seven offsets."""

    def __init__(self, *_: object) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def list_offsets(self, asked: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=END))
        return dict.fromkeys(asked, answer)


def brought(*offsets: int, end: int | None = END) -> list[Message]:
    return [Message(offset) for offset in offsets] + ([] if end is None else [Message(end, KafkaError._PARTITION_EOF)])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[int], list[int]]]:
    """What is read until the end, and where the client was sent, when it brings these scripts."""
    monkeypatch.setattr(topic_reader, "Consumer", Client)
    monkeypatch.setattr(topic_reader, "AdminClient", Admin)

    def to_the_end(*scripts: Sequence[Message]) -> tuple[list[int], list[int]]:
        reader = TopicReader(Settings(kafka_bootstrap_servers="nowhere:1"), "group", [TOPIC])
        client: Any = reader._consumer
        client.scripts.extend(scripts)
        offsets, positions, ended = list[int](), [0], False
        while not ended:
            read = reader.read(positions, 100, 2**20)
            offsets += [record.offset for _, record in read.records]
            positions, ended = list(read.reached), read.ended
        assert positions == [END]
        reader.close()
        return offsets, client.sent_to

    return to_the_end


def test_records_that_the_client_left_out_are_read(read: Callable[..., tuple[list[int], list[int]]]) -> None:
    assert read(brought(0, 1, 5, 6), brought(2, 3, 4, 5, 6)) == ([*range(END)], [0, 2])


def test_a_gap_is_believed_when_it_ends_at_the_same_record_again(
    read: Callable[..., tuple[list[int], list[int]]],
) -> None:
    assert read(brought(0, 1, 5, 6), brought(5, 6)) == ([0, 1, 5, 6], [0, 2])


def test_a_gap_no_wider_than_one_that_was_proved_is_not_read_twice(
    read: Callable[..., tuple[list[int], list[int]]],
) -> None:
    assert read(brought(0, 2, 4, 6), brought(2, 4, 6)) == ([0, 2, 4, 6], [0, 1])


def test_an_end_of_the_time_before_jumps_over_nothing(read: Callable[..., tuple[list[int], list[int]]]) -> None:
    assert read(brought(0, 1), brought(2, 3, 4, 5, 6)) == ([*range(END)], [0, 2])


def test_an_end_behind_marks_is_believed_when_it_comes_again(
    read: Callable[..., tuple[list[int], list[int]]],
) -> None:
    assert read(brought(0, 1), brought()) == ([0, 1], [0, 2])


def test_records_of_the_time_before_are_dropped(read: Callable[..., tuple[list[int], list[int]]]) -> None:
    assert read(brought(0, 1, 2, 0, 1, 2, 3, 4, 5, 6)) == ([*range(END)], [0])


def test_a_client_that_brings_another_gap_each_time_is_given_up(
    read: Callable[..., tuple[list[int], list[int]]],
) -> None:
    with pytest.raises(TopicsUnreadable, match="a gap ends elsewhere each time"):
        read(*[brought(offset, end=None) for offset in (2, 3, 4, 5, 6, 2)])


def test_what_was_read_before_it_failed_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "Consumer", Client)
    monkeypatch.setattr(topic_reader, "AdminClient", Admin)
    monkeypatch.setattr(Client, "consume", lambda *_, **__: [])  # one at a time
    reader = TopicReader(Settings(kafka_bootstrap_servers="nowhere:1"), "group", [TOPIC])
    client: Any = reader._consumer
    lost = Message(1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    client.scripts.extend([[*brought(0, end=None), lost], brought(*range(END))])
    with pytest.raises(TopicsUnreadable):
        reader.read([0], 100, 2**20)
    assert [record.offset for _, record in reader.read([0], 100, 2**20).records] == [*range(END)]


def test_a_topic_that_does_not_tell_whether_it_is_compacted_counts_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reader, "Consumer", Client)
    monkeypatch.setattr(topic_reader, "AdminClient", Admin)
    denied: Future[Any] = Future()
    denied.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    monkeypatch.setattr(topic_reader, "topic_configs", lambda *_: {TOPIC: denied})
    reader = TopicReader(Settings(kafka_bootstrap_servers="nowhere:1"), "group", [TOPIC])
    assert reader.compacted() == [f"whether {TOPIC} is compacted cannot be read (KafkaException)"]
