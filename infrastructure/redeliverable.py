"""What Kafka could still hand to a consumer group: the evidence by which an inbox may forget. Joins no group."""

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from infrastructure.consumer_lag import first_records, where_the_group_goes_on
from infrastructure.kafka_config import connection_config
from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.topic_configs import Config, topic_configs


@dataclass(frozen=True)
class Redeliverable:
    """kept_ms: how long each topic keeps its records by its own configuration; None for ever or where the cluster does
    not tell, and missing where there is no such topic. oldest: the first record of each partition that has one.
    unread: the first that the group has not taken, where there is one; an older event may lie behind it, when a
    relay published it late."""

    kept_ms: dict[str, int | None]
    oldest: Sequence[Record]
    unread: Sequence[Record]


def redeliverable(settings: Settings, group: str, topics: Sequence[str], timeout: float = 5.0) -> Redeliverable:
    """Raises KafkaException when the cluster does not answer a question within `timeout` seconds, or with an error."""
    config = connection_config(settings) | {"log_level": 0}
    reading = {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(config | reading | {"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    try:
        known = {name: each for name, each in consumer.list_topics(timeout=timeout).topics.items() if not each.error}
        there = [topic for topic in topics if topic in known]
        partitions = [TopicPartition(topic, n) for topic in there for n in known[topic].partitions]
        beginnings = [TopicPartition(each.topic, each.partition, OFFSET_BEGINNING) for each in partitions]
        return Redeliverable(
            kept_ms=_kept_ms(AdminClient(config), there, timeout),
            oldest=_records(consumer, beginnings, timeout),
            unread=_records(consumer, where_the_group_goes_on(consumer, partitions, timeout), timeout),
        )
    finally:
        consumer.close()


def _records(consumer: Consumer, places: list[TopicPartition], timeout: float) -> list[Record]:
    return [Record.of(message) for message in first_records(consumer, places, timeout)]


def _kept_ms(admin: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, int | None]:
    answers = topic_configs(admin, topics, timeout)
    return {topic: _retention(answer.result(2 * timeout)) for topic, answer in answers.items()}


def _retention(config: Config) -> int | None:
    """A topic that is only compacted keeps the last record of each key for ever. Not every cluster tells all of it."""
    told = {name: config[name].value for name in ("retention.ms", "cleanup.policy") if name in config}
    milliseconds = int(told.get("retention.ms") or -1)
    return None if milliseconds < 0 or "delete" not in (told.get("cleanup.policy") or "") else milliseconds
