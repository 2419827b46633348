"""How far a consumer group is behind, as Kafka has it. Joins no group and disturbs none."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from infrastructure.health import LONGEST_SILENCE
from infrastructure.kafka_config import connection_config
from infrastructure.settings import Settings

LONGEST_WITHOUT_MEMBERS = 10.0
"""Seconds that records may wait in a group that nobody is a member of: longer than a restart takes. (The embedded
broker never tells of members; there this is how long a backlog may take.)"""


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
        waiting = self.waiting_seconds or 0.0
        if self.members == 0 and waiting > LONGEST_WITHOUT_MEMBERS:
            return f"records have waited for {waiting:.0f} s and nobody takes them: start the projection"
        if waiting > LONGEST_SILENCE:
            return f"a record has waited for {waiting:.0f} s: see the projection's log"
        return None


def group_lag(settings: Settings, group: str, topics: Sequence[str], timeout: float = 5.0) -> GroupLag:
    """Raises KafkaException when the cluster does not answer a question within `timeout` seconds, or with an error."""
    config = connection_config(settings) | {"log_level": 0}
    reading = {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(config | reading | {"auto.offset.reset": "earliest"})
    try:
        known = {name: each for name, each in consumer.list_topics(timeout=timeout).topics.items() if not each.error}
        partitions = [TopicPartition(topic, n) for topic in topics if topic in known for n in known[topic].partitions]
        places = where_the_group_goes_on(consumer, partitions, timeout)
        waiting = first_records(consumer, places, timeout)
        published = [record.timestamp()[1] / 1000 for record in waiting]
        return GroupLag(
            lag=sum(_from_here_to_the_end(consumer, record, timeout) for record in waiting),
            missing_topics=tuple(topic for topic in topics if topic not in known),
            waiting_seconds=max(0.0, time() - min(published)) if waiting else None,
            members=_members(AdminClient(config), group, timeout) if waiting else None,
        )
    finally:
        consumer.close()


def where_the_group_goes_on(
    consumer: Consumer, partitions: list[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """The group's committed offsets; the beginning where it has none."""
    committed = consumer.committed(partitions, timeout=timeout) if partitions else []
    return [
        TopicPartition(each.topic, each.partition, OFFSET_BEGINNING if each.offset < 0 else each.offset)
        for each in committed
    ]


def first_records(consumer: Consumer, places: list[TopicPartition], timeout: float) -> list[Message]:
    """The first record at or after each place, of each partition that has one there.

    A record is looked for rather than trusting the end that the broker names: an offset may lie beyond it.
    Raises KafkaException for a partition that answers with an error, or not within `timeout` seconds.
    """
    consumer.assign(places)
    unknown, found, until = {(place.topic, place.partition) for place in places}, [], monotonic() + timeout
    while unknown:
        message = consumer.poll(max(0.0, until - monotonic()))
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        place, error = (message.topic(), message.partition()), message.error()
        if place not in unknown:
            continue
        if error is None:
            found.append(message)
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        unknown.discard(place)
    return found


def _from_here_to_the_end(consumer: Consumer, record: Message, timeout: float) -> int:
    place = TopicPartition(str(record.topic()), record.partition() or 0)
    _, high = consumer.get_watermark_offsets(place, timeout=timeout)
    return int(max(1, high - (record.offset() or 0)))


def _members(admin: AdminClient, group: str, timeout: float) -> int | None:
    """How many; None when the broker cannot tell."""
    try:
        return len(admin.describe_consumer_groups([group], request_timeout=timeout)[group].result().members)
    except KafkaException as error:
        return 0 if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND else None
