"""The relay makes the topics it needs and no others, and says so when one is not as the settings name it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from pydantic import ValidationError

from domain.contracts import Contract
from infrastructure import metrics
from infrastructure.settings import Settings
from infrastructure.topics import Topics, TopicsNotReady, ensure_topics
from tests.support.kafka import Kafka, MakeTopic, delete_topic, grow
from tests.support.wait import eventually

UniqueName = Callable[[str], str]


def contract_on(topic_name: str) -> type[Contract]:
    class Happened(Contract):
        topic = topic_name
        event_type: Literal["Happened"]
        schema_version: Literal[1]

    return Happened


def partitions(kafka: Kafka, topic: str) -> int:
    """0 when there is no such topic."""
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics.get(topic)
    return len(found.partitions) if found else 0


@contextmanager
def made(kafka: Kafka, topic: str) -> Iterator[str]:
    """A topic that the code under test makes."""
    try:
        yield topic
    finally:
        delete_topic(kafka.bootstrap, topic)


def test_a_missing_topic_is_made_with_the_partitions_of_the_settings(kafka: Kafka, unique_name: UniqueName) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=4)

    with made(kafka, unique_name("orders.placed.v1")) as topic:
        ensure_topics(settings, [contract_on(topic)])

        eventually(lambda: partitions(kafka, topic) == 4)


def test_a_topic_that_is_there_stays_as_it_is(kafka: Kafka, topics: MakeTopic) -> None:
    topic = topics("orders", partitions=2)

    ensure_topics(Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=2), [contract_on(topic)])

    assert partitions(kafka, topic) == 2


def test_another_number_of_partitions_is_said_loudly_and_not_changed(
    kafka: Kafka, topics: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics("orders", partitions=3)

    with caplog.at_level(logging.ERROR):
        ensure_topics(Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=6), [contract_on(topic)])

    assert [(vars(record)["topic"], vars(record)["partitions"]) for record in caplog.records] == [(topic, 3)]
    assert partitions(kafka, topic) == 3


def test_a_topic_that_another_relay_made_meanwhile_is_compared_too(
    kafka: Kafka, topics: MakeTopic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics("orders", partitions=3)
    looks = [{}, {topic: 3}]  # before and after the other one made it
    monkeypatch.setattr("infrastructure.topics._existing", lambda *_: looks.pop(0))

    with caplog.at_level(logging.ERROR):
        ensure_topics(Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=6), [contract_on(topic)])

    assert [(vars(record)["topic"], vars(record)["partitions"]) for record in caplog.records] == [(topic, 3)]


@pytest.mark.kafka
def test_partitions_that_are_added_while_the_relay_runs_are_noticed_too(
    kafka: Kafka, topics: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infrastructure.topics._LOOK_EVERY", 0.0)
    topic = topics("orders", partitions=3)
    settings = Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=3)
    known = Topics(settings, [contract_on(topic)])
    known.ensure(lambda: None)
    assert metrics.TOPIC_PARTITIONS_UNEXPECTED.labels(topic)._value.get() == 0

    grow(kafka.bootstrap, topic, partitions=6)

    def noticed() -> bool:
        known.ensure(lambda: None)
        return bool(metrics.TOPIC_PARTITIONS_UNEXPECTED.labels(topic)._value.get())

    eventually(noticed)


def retention(kafka: Kafka, topic: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})  # kept: collected, it would take the question with it
    try:
        value: str | None = admin.describe_configs([resource])[resource].result(10)["retention.ms"].value
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # just made: not told of yet
            raise
        return None
    return value


@pytest.mark.parametrize(("seconds", "milliseconds"), [(86_400, "86400000"), (-1, "-1")])
def test_a_missing_topic_is_made_with_the_retention_of_the_settings(
    kafka: Kafka, unique_name: UniqueName, seconds: int, milliseconds: str
) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_retention=seconds)

    with made(kafka, unique_name("orders.placed.v1")) as topic:
        ensure_topics(settings, [contract_on(topic)])

        eventually(lambda: retention(kafka, topic) == milliseconds)


@pytest.mark.parametrize(("seconds", "unexpected"), [(3_600, 0), (7_200, 1), (-1, 1)])
def test_another_retention_is_said_loudly_and_not_changed(
    kafka: Kafka, topics: MakeTopic, caplog: pytest.LogCaptureFixture, seconds: int, unexpected: int
) -> None:
    topic = topics("orders", config={"retention.ms": "3600000"})
    settings = Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_partitions=1, topic_retention=seconds)

    with caplog.at_level(logging.ERROR):
        ensure_topics(settings, [contract_on(topic)])

    assert [vars(record)["retention_ms"] for record in caplog.records] == [3_600_000] * unexpected
    assert metrics.TOPIC_RETENTION_UNEXPECTED.labels(topic)._value.get() == unexpected
    assert retention(kafka, topic) == "3600000"


def test_records_that_would_be_kept_for_no_time_are_a_wrong_setting() -> None:
    with pytest.raises(ValidationError, match="some time"):
        Settings(topic_retention=0)


def test_without_kafka_it_says_so_soon() -> None:
    with pytest.raises(TopicsNotReady) as not_ready:
        ensure_topics(Settings(kafka_bootstrap_servers="127.0.0.1:1"), [contract_on("orders")])

    assert not_ready.value.topic is None


def test_a_topic_that_cannot_be_made_is_named(kafka: Kafka) -> None:
    with pytest.raises(TopicsNotReady) as not_ready:
        ensure_topics(Settings(kafka_bootstrap_servers=kafka.bootstrap), [contract_on("not a topic name")])

    assert not_ready.value.topic == "not a topic name"


def test_the_lease_is_kept_between_the_questions_to_the_cluster(
    kafka: Kafka, unique_name: Callable[[str], str]
) -> None:
    topics = [unique_name("orders"), unique_name("orders")]
    turns: list[int] = []
    try:
        settings = Settings(kafka_bootstrap_servers=kafka.bootstrap, topic_replication_factor=1)
        ensure_topics(settings, [contract_on(topic) for topic in topics], lambda: turns.append(1))
    finally:
        for topic in topics:
            delete_topic(kafka.bootstrap, topic)
    assert len(turns) == 1 + len(topics)
