"""In the place of Kafka's client: it brings what a test has written down, also what no real one does when asked to."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, TopicPartition

from infrastructure import subscriber as subscriber_module
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber

TOPIC = "orders"


class ScriptedMessage:
    def __init__(self, offset: int, partition: int = 0) -> None:
        self._offset, self._partition = offset, partition

    def error(self) -> KafkaError | None:
        return None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return []

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, 0


class ScriptedClient:
    """`script`: messages, and calls that are made when it is their turn, as the client makes its own from a poll.

    Each poll brings one message, each consume what comes before the next None; a None also ends a poll.
    """

    def __init__(self, config: dict[str, Any], logger: object = None) -> None:
        self.script: deque[ScriptedMessage | Callable[[], object] | None] = deque()
        self.committed_offset: int | None = 3
        self.oldest = 0
        self.is_silent = False
        """Whether it answers no question for offsets."""
        self.refuses_to_seek = False
        self.starts: list[int] = []
        self.seeks: list[int] = []
        self.commits: list[int] = []
        self.paused: set[int] = set()

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._on_assign, self._on_revoke = on_assign, on_revoke

    def assign(self) -> None:
        self._on_assign(self, [TopicPartition(TOPIC, 0)])

    def revoke(self) -> None:
        self._on_revoke(self, [TopicPartition(TOPIC, 0)])

    def poll(self, wait: float) -> ScriptedMessage | None:
        return next(iter(self.consume(1, wait)), None)

    def consume(self, most: int, timeout: float) -> list[ScriptedMessage]:
        messages: list[ScriptedMessage] = []
        while self.script and len(messages) < most:
            match self.script.popleft():
                case None:
                    break
                case ScriptedMessage() as message:
                    messages.append(message)
                case call:
                    call()
        return messages

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._answer()
        none = -1001
        offset = none if self.committed_offset is None else self.committed_offset
        return [TopicPartition(each.topic, each.partition, offset) for each in partitions]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._answer()
        return self.oldest, 1_000

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.starts += [each.offset for each in partitions]

    def seek(self, partition: TopicPartition) -> None:
        if self.refuses_to_seek:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.seeks.append(partition.offset)

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        self.commits += [each.offset for each in offsets]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused -= {each.partition for each in partitions}

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.is_silent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def scripted(monkeypatch: pytest.MonkeyPatch) -> tuple[Subscriber, ScriptedClient]:
    """A subscriber, and the client that it believes to be Kafka's."""
    monkeypatch.setattr(subscriber_module, "Consumer", ScriptedClient)
    subscriber = Subscriber(Settings(kafka_bootstrap_servers="nowhere:1"), "group", [TOPIC])
    client = subscriber._consumer
    assert isinstance(client, ScriptedClient)
    return subscriber, client


def brought(*offsets: int) -> list[ScriptedMessage]:
    return [ScriptedMessage(offset) for offset in offsets]
