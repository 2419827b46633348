"""What a topic holds, read by a consumer that joins no group."""

import time
from typing import NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

_PATIENCE = 20.0
"""Seconds without any message."""


class Published(NamedTuple):
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def published(bootstrap: str, topic: str, *, isolation: str = "read_uncommitted") -> list[Published]:
    """All messages that are in the topic now, in order within each partition.

    isolation: read_committed ends before the first message of an open transaction.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody-joins-this",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,  # behind the last message there may be marks of transactions
            "log_level": 0,
        }
    )
    try:
        return _read(consumer, topic)
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str) -> list[Published]:
    metadata = consumer.list_topics(topic, timeout=_PATIENCE).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    left = set(metadata.partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    found: list[Published] = []
    deadline = time.monotonic() + _PATIENCE
    while left:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None and offset is not None
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            left.discard(partition)
        elif error is not None:
            raise KafkaException(error)
        elif partition in left:
            deadline = time.monotonic() + _PATIENCE
            headers = tuple(cast(list[tuple[str, bytes]], message.headers() or []))
            found.append(Published(partition, offset, message.key() or b"", message.value() or b"", headers))
    return sorted(found)
