"""A publisher of transactions as the tests use it, and what it has committed."""

import random
from threading import Event

from infrastructure.kafka_faults import Fault
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed
from infrastructure.settings import Settings
from infrastructure.transactional_publisher import TransactionalPublisher
from tests.support.published import published
from tests.support.wait import eventually

NEVER = Event()
ANCHOR = bytes(range(32))
START = Mark(0)


def nothing() -> None:
    """A turn that asks for nothing."""


def numbered(topic: str, numbers: range, key: str = "x") -> list[OutgoingMessage]:
    return [OutgoingMessage(topic, key.encode(), b"%d" % n, (("ce_id", b"evt_%d" % n),), n) for n in numbers]


def with_value(topic: str, value: bytes) -> OutgoingMessage:
    return OutgoingMessage(topic, b"x", value, (), 1)


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def settings(bootstrap: str, publish_timeout: float = 20.0, stop_grace: float = 15.0) -> Settings:
    return Settings(kafka_bootstrap_servers=bootstrap, publish_timeout=publish_timeout, stop_grace=stop_grace)


def publisher(bootstrap: str, topic: str, **values: float) -> TransactionalPublisher:
    """Named like its topic, so that two of them are of one shard."""
    return TransactionalPublisher(settings(bootstrap, **values), topic, [topic])


def publish(subject: TransactionalPublisher, messages: list[OutgoingMessage], covers: Mark = START) -> int:
    return subject.send(messages, covers, nothing).wait(NEVER, nothing)


def resume(subject: TransactionalPublisher, stored: Mark = START) -> Mark:
    """A broker that has just started says for a while that it is not ready."""

    def ready() -> Mark | None:
        try:
            return subject.resume(stored, nothing)
        except PublishFailed as failed:
            assert failed.fault is Fault.BROKER
            return None

    mark = eventually(ready, within=60)
    assert mark is not None
    return mark


def committed(bootstrap: str, topic: str) -> list[bytes]:
    return [each.value for each in published(bootstrap, topic, isolation="read_committed")]
