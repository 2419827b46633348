"""What a topic holds, read by a consumer that joins no group."""

import time
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

_PATIENCE = 20.0


class Published(NamedTuple):
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def published(bootstrap: str, topic: str, *, isolation: str = "read_uncommitted") -> list[Published]:
    """All messages that are in the topic now, in order within each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody-joins-this",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
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
    left: dict[int, int] = {}
    starts = []
    for partition in metadata.partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_PATIENCE)
        if high > low:
            left[partition] = high
            starts.append(TopicPartition(topic, partition, low))
    consumer.assign(starts)
    found: list[Published] = []
    deadline = time.monotonic() + _PATIENCE
    while left:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        headers = tuple(cast(list[tuple[str, bytes]], message.headers() or []))
        found.append(Published(partition, offset, message.key() or b"", message.value() or b"", headers))
        if offset + 1 >= left.get(partition, 0):
            left.pop(partition, None)
    return sorted(found)
