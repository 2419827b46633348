"""How far a consumer group is behind, as Kafka has it. Joins no group and disturbs none."""

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from infrastructure.kafka_config import connection_config
from infrastructure.settings import Settings


@dataclass(frozen=True)
class TopicLag:
    """lag: records above the committed offsets, over all partitions. A group without an offset begins at the start."""

    topic: str
    partitions: int
    lag: int


def group_lag(settings: Settings, group: str, topics: Sequence[str], timeout: float = 5.0) -> list[TopicLag]:
    """Of each topic that exists. Raises KafkaException when the cluster does not answer within `timeout` seconds."""
    consumer = Consumer(connection_config(settings) | {"group.id": group, "enable.auto.commit": False})
    try:
        known = consumer.list_topics(timeout=timeout).topics
        return [
            _topic_lag(consumer, topic, list(known[topic].partitions), timeout)
            for topic in topics
            if topic in known and known[topic].error is None
        ]
    finally:
        consumer.close()


def _topic_lag(consumer: Consumer, topic: str, partitions: list[int], timeout: float) -> TopicLag:
    committed = consumer.committed([TopicPartition(topic, partition) for partition in partitions], timeout=timeout)
    lag = 0
    for position in committed:
        low, high = consumer.get_watermark_offsets(position, timeout=timeout)
        lag += high - max(position.offset, low)
    return TopicLag(topic, len(partitions), lag)
