"""The topics that an outbox publishes to: made when missing, else compared with what the settings name.

A topic with another number of partitions than the settings name is published to all the same, and said
loudly: whoever changed the count has already moved keys to other partitions, and stopping the relay
would not bring the order between old and new events back. Only who reads the topic can, by draining the
old partitions first. Likewise a topic that keeps its records for another time: it is never changed from here,
for to shorten that would delete what somebody has not read, and to stop would not keep anything longer.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from domain.contracts import Contract
from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.kafka_config import connection_config
from infrastructure.settings import Settings

logger = logging.getLogger(__name__)

_RETENTION = "retention.ms"
_PATIENCE = 3.0
"""Longest wait for each answer of the cluster, in seconds; a third of the lease when that is shorter."""
_LOOK_EVERY = 300.0
"""Seconds between two looks at the topics of a relay while all is well."""


@dataclass(eq=False)
class TopicsNotReady(CounterfoilError):
    """The topics cannot be published to yet: Kafka is away, or one is missing and could not be made.

    topic: the one in question, or None when it concerns them all. error: Kafka's or the client's name of it.
    What to do: try again later. When it does not pass, create the topic, or allow the relay to.
    """

    topic: str | None
    error: str

    def __str__(self) -> str:
        return f"{self.topic or 'Kafka'} is not ready ({self.error}). Try again; if it stays so, create the topic."


class Topics:
    """The topics of an outbox, made and checked for all shards of a process: at its start, when one went missing,
    and now and then, because somebody may change one while the relay runs."""

    def __init__(self, settings: Settings, contracts: Sequence[type[Contract]]) -> None:
        self._settings, self._contracts = settings, contracts
        self._look_at = float("-inf")

    def ensure(self, turn: Callable[[], None]) -> None:
        """Raises TopicsNotReady, and what `turn` raises."""
        if monotonic() >= self._look_at:
            ensure_topics(self._settings, self._contracts, turn)
            self._look_at = monotonic() + _LOOK_EVERY

    def doubt(self) -> None:
        self._look_at = float("-inf")


def ensure_topics(
    settings: Settings, contracts: Sequence[type[Contract]], turn: Callable[[], None] = lambda: None
) -> None:
    """Makes the missing topics of these contracts, with the partitions, replicas and retention of the settings.

    One attempt, of a few seconds for each topic at most. `turn` is called before each question to the cluster,
    to keep a lease meanwhile. Returns when every topic is there. Raises TopicsNotReady, and what `turn` raises.
    """
    patience = min(_PATIENCE, settings.relay_lease / 3)
    quiet: dict[str, Any] = {"error_cb": lambda _error: None, "log_level": 0}
    admin = AdminClient(connection_config(settings) | quiet)
    names = list(dict.fromkeys(contract.topic for contract in contracts))
    turn()
    found = _existing(admin, patience)
    for name in names:
        turn()
        if name not in found and not _create(admin, name, settings, patience):
            turn()
            found = _existing(admin, patience)
            if name not in found:
                raise TopicsNotReady(name, "LEADER_NOT_AVAILABLE")
        if name in found:
            _compare_partitions(name, found[name], settings)
    expected, there = _retention_ms(settings), [name for name in names if name in found]
    if expected is not None and there:
        turn()
        _compare_retention(admin, there, expected, patience)


def _existing(admin: AdminClient, patience: float) -> dict[str, int]:
    """Partition counts. All topics are asked for, because a question for one that is missing might make it."""
    try:
        topics = admin.list_topics(timeout=patience).topics
    except KafkaException as error:
        raise TopicsNotReady(None, error.args[0].name()) from None
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}


def _create(admin: AdminClient, name: str, settings: Settings, patience: float) -> bool:
    """False when it is there already: another relay was faster, or the cluster had not told of it yet."""
    retention = _retention_ms(settings)
    config = {} if retention is None else {_RETENTION: str(retention)}
    topic = NewTopic(name, settings.topic_partitions, settings.topic_replication_factor, config=config)
    try:
        admin.create_topics([topic], operation_timeout=patience)[name].result(patience)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise TopicsNotReady(name, error.args[0].name()) from None
    except NoAnswer:
        raise TopicsNotReady(name, "_TIMED_OUT") from None
    logger.info("topic created", extra={"topic": name, "partitions": settings.topic_partitions})
    return True


def _compare_partitions(name: str, partitions: int, settings: Settings) -> None:
    unexpected = partitions != settings.topic_partitions
    metrics.TOPIC_PARTITIONS_UNEXPECTED.labels(name).set(unexpected)
    if unexpected:
        logger.error(
            "topic has another number of partitions than the settings: events of a key may be out of order",
            extra={"topic": name, "partitions": partitions, "expected": settings.topic_partitions},
        )


def _compare_retention(admin: AdminClient, names: Sequence[str], expected: int, patience: float) -> None:
    """Whoever may not see the configuration of a topic can still publish to it."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, answer in admin.describe_configs(resources, request_timeout=patience).items():
        try:
            found = int(answer.result(patience)[_RETENTION].value)
        except (KafkaException, NoAnswer, KeyError, TypeError, ValueError) as error:
            unseen = {"topic": resource.name, "error": type(error).__name__}
            logger.warning("the retention of a topic cannot be seen", extra=unseen)
            continue
        unexpected = found != expected
        metrics.TOPIC_RETENTION_UNEXPECTED.labels(resource.name).set(unexpected)
        if unexpected:
            fields = {"topic": resource.name, "retention_ms": found, "expected_ms": expected}
            logger.error("topic keeps its records for another time than the settings name", extra=fields)


def _retention_ms(settings: Settings) -> int | None:
    """As Kafka takes it, where -1 is for ever; None for the broker's own."""
    seconds = settings.topic_retention
    return seconds * 1_000 if seconds is not None and seconds > 0 else seconds
