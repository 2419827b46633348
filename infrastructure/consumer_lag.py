"""How far a consumer group is behind, as Kafka has it. Joins no group and disturbs none."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from infrastructure.health import LONGEST_SILENCE
from infrastructure.kafka_config import connection_config
from infrastructure.settings import Settings


@dataclass(frozen=True)
class GroupLag:
    """lag: records that the group has not taken, over all partitions of the topics that exist.

    waiting_seconds: age of the oldest of them, members: of the group; None when nothing waits, or Kafka does not say.
    """

    lag: int
    missing_topics: tuple[str, ...]
    waiting_seconds: float | None
    members: int | None

    @property
    def fault(self) -> str | None:
        """What is wrong, in words, and what to do; None when all is well."""
        if self.missing_topics:
            return f"no topic {', '.join(self.missing_topics)}: start the relay, which creates it"
        if self.lag and self.members == 0:
            return "records wait and nobody takes them: start the projection"
        if (self.waiting_seconds or 0.0) > LONGEST_SILENCE:
            return f"a record has waited for {self.waiting_seconds:.0f} s: see the projection's log"
        return None


def group_lag(settings: Settings, group: str, topics: Sequence[str], timeout: float = 5.0) -> GroupLag:
    """Raises KafkaException when the cluster does not answer a question within `timeout` seconds."""
    config = connection_config(settings) | {"log_level": 0}
    consumer = Consumer(config | {"group.id": group, "enable.auto.commit": False})
    try:
        known = {name: each for name, each in consumer.list_topics(timeout=timeout).topics.items() if not each.error}
        partitions = [TopicPartition(topic, n) for topic in topics if topic in known for n in known[topic].partitions]
        waiting = _waiting(consumer, partitions, timeout)
        return GroupLag(
            lag=sum(waiting.values()),
            missing_topics=tuple(topic for topic in topics if topic not in known),
            waiting_seconds=_age_of_the_oldest(consumer, list(waiting), timeout) if waiting else None,
            members=_members(AdminClient(config), group, timeout) if waiting else None,
        )
    finally:
        consumer.close()


def _waiting(consumer: Consumer, partitions: list[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
    """Where the group will go on, and how many records are there. A group without an offset, or with one that is
    out of range, begins at the start."""
    waiting = {}
    for committed in consumer.committed(partitions, timeout=timeout) if partitions else []:
        low, high = consumer.get_watermark_offsets(committed, timeout=timeout)
        begin = committed.offset if low <= committed.offset <= high else low
        if begin < high:
            waiting[TopicPartition(committed.topic, committed.partition, begin)] = high - begin
    return waiting


def _age_of_the_oldest(consumer: Consumer, places: list[TopicPartition], timeout: float) -> float | None:
    """Seconds since the first record of each partition was published; the largest of those read in time."""
    until, published = monotonic() + timeout, []
    for place in places:
        consumer.assign([place])
        message = consumer.poll(max(0.0, until - monotonic()))
        if message is not None and message.error() is None:
            published.append(message.timestamp()[1] / 1000)
    return max(0.0, time() - min(published)) if published else None


def _members(admin: AdminClient, group: str, timeout: float) -> int | None:
    """How many; None when the broker cannot tell."""
    try:
        return len(admin.describe_consumer_groups([group], request_timeout=timeout)[group].result().members)
    except KafkaException as error:
        return 0 if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND else None
