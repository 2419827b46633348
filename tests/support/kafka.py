"""Which Kafka the tests get, and topics in it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from counterfoil.embedded import EmbeddedBroker
from tests.support.apache_kafka import RealKafka
from tests.support.kafka_programs import NoKafka, find_kafka_programs
from tests.support.wait import eventually

ADDRESS = "COUNTERFOIL_TEST_KAFKA_BOOTSTRAP_SERVERS"
_ADMIN_SECONDS = 20.0


@dataclass(frozen=True)
class Kafka:
    """The broker that tests share. bootstrap: for `bootstrap.servers`. real: False for the embedded one."""

    bootstrap: str
    real: bool


class MakeTopic(Protocol):
    """Creates a topic with a unique name that begins with `name`; returns the whole name."""

    def __call__(self, name: str = "topic", partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


class EmptyTopics(Protocol):
    """Empties topics, or creates them, under exactly these names; they are deleted after the test."""

    def __call__(self, *names: str, partitions: int = 1) -> None: ...


def why_there_is_no_real_kafka() -> str | None:
    """None where there is one: an address in the environment, or Java with Kafka's jars."""
    return None if os.environ.get(ADDRESS) else why_we_cannot_start_a_real_kafka()


def why_we_cannot_start_a_real_kafka() -> str | None:
    """None where we can start one of our own."""
    found = find_kafka_programs()
    return found.reason if isinstance(found, NoKafka) else None


@contextmanager
def running_kafka() -> Iterator[Kafka]:
    """The best Kafka there is: the one at the address, else a real one of our own, else the embedded."""
    address = os.environ.get(ADDRESS)
    if address:
        yield Kafka(address, real=True)
        return
    programs = find_kafka_programs()
    if isinstance(programs, NoKafka):
        with EmbeddedBroker() as broker:
            yield Kafka(broker.bootstrap, real=False)
    else:
        with RealKafka(programs) as kafka:
            yield Kafka(kafka.bootstrap, real=True)


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create it under exactly this name, and return once the broker has done so and tells of it."""
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin = _admin(bootstrap)  # kept: collected before the answer, it would take the request with it
    admin.create_topics([topic], operation_timeout=_ADMIN_SECONDS)[name].result(_ADMIN_SECONDS)
    eventually(lambda: _is_told_of(admin, name))


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Give the topic so many partitions in all, and return once the broker tells of them."""
    admin = _admin(bootstrap)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_ADMIN_SECONDS)
    eventually(lambda: len(admin.list_topics(timeout=_ADMIN_SECONDS).topics[topic].partitions) == partitions)


def _is_told_of(admin: AdminClient, topic: str) -> bool:
    found = admin.list_topics(timeout=_ADMIN_SECONDS).topics.get(topic)
    return found is not None and found.error is None


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete it, if it is there, and return once the broker has done so."""
    admin = _admin(bootstrap)
    try:
        admin.delete_topics([name], operation_timeout=_ADMIN_SECONDS)[name].result(_ADMIN_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def empty_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    """Make sure that it exists and holds nothing, and that no consumer group remembers a place in it."""
    delete_topic(bootstrap, name)
    eventually(lambda: not groups_with_offsets_in(bootstrap, name))  # the broker forgets them a little later
    create_topic(bootstrap, name, partitions)


def groups_with_offsets_in(bootstrap: str, topic: str) -> list[str]:
    """The consumer groups that have committed a place in the topic."""
    admin = _admin(bootstrap)
    groups = [each.group_id for each in admin.list_consumer_groups().result(_ADMIN_SECONDS).valid]
    return [group for group in groups if topic in _topics_with_offsets_of(group, admin)]


def _topics_with_offsets_of(group: str, admin: AdminClient) -> set[str]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    return {each.topic for each in asked.result(_ADMIN_SECONDS).topic_partitions or []}


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
