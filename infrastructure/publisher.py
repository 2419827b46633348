"""Messages to Kafka, each with its own delivery known, in order per key whatever fails.

How the order is kept: a message is handed to the client only once the message before it of the same key
and topic is acknowledged. So no failure, no retry inside the client and no delay of a report can let it
pass, whatever the client and the broker do with what is in flight. Publishing again what was not
acknowledged adds repeats, never a later message of a key before an earlier one. Between keys, and
between topics, no order is kept.

The price: many messages of one key in one batch go one after another, a round trip each.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from confluent_kafka import KafkaError, Producer

from domain.errors import CounterfoilError
from infrastructure import bounded, metrics
from infrastructure.delivery import Delivery, Failure, OutgoingMessage
from infrastructure.kafka_config import connection_config
from infrastructure.kafka_faults import Fault
from infrastructure.settings import Settings

__all__ = ["KafkaPublisher", "OutgoingMessage", "PublishFailed", "Publisher", "producer_config"]

logger = logging.getLogger(__name__)
_silent = logging.getLogger(f"{__name__}.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
"""The client's own log: whatever matters reaches us as an error, and is logged here by its name."""

_CLOSING = 1.0
"""Longest wait for the threads of a producer to end."""


@dataclass(eq=False)
class PublishFailed(CounterfoilError):
    """Not all messages were acknowledged.

    acknowledged: how many of the first messages were, without a gap. Others may be in the topic too.
    error: Kafka's or the client's name of the error. fault: where it lies.
    index: the message that it was reported for; None when for none in particular.

    What to do: publish again from the first message that was not acknowledged. A message that is at fault
    itself would be refused again, also alone.
    """

    acknowledged: int
    error: str
    fault: Fault
    index: int | None = None

    def __str__(self) -> str:
        return f"{self.error}, a fault of the {self.fault}. Publish again from the first that is not acknowledged."


class Publisher(Protocol):
    """Takes messages in order.

    `publish` returns how many of the first messages are acknowledged, without a gap: all of them, or
    fewer when told to stop. It raises PublishFailed, and whatever `turn` raises. `turn` is called before
    the first message is sent and several times a second until the end; once it has raised, nothing more
    is sent.
    """

    def publish(self, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None] = ...) -> int: ...

    def close(self) -> None: ...


def producer_config(settings: Settings) -> dict[str, Any]:
    """Holds the password: never log it."""
    return connection_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "delivery.timeout.ms": int(settings.publish_timeout * 1_000),
        "partitioner": "murmur2_random",  # as Java clients do; the client's own default agrees on few keys
        "allow.auto.create.topics": False,  # a misspelt topic must not come to life
        "topic.metadata.propagation.max.ms": 5_000,  # how long a missing topic may be one just being made
        "message.max.bytes": 1_000_000,  # below the brokers' default of 1,048,588 for a whole batch
        "batch.size": 262_144,  # what is larger is alone in its batch
        "compression.type": "lz4",
        "log_level": 0,
        "linger.ms": 5,  # only while messages are handed over: waiting for the reports sends at once
    }


class KafkaPublisher:
    """A Publisher on one idempotent producer, made when first needed and again after each failure.

    For one thread. After a fork the child makes a producer of its own.
    """

    def __init__(self, settings: Settings, changes: Mapping[str, Any] | None = None) -> None:
        """changes: to the producer's configuration, such as a smaller queue."""
        self._config = producer_config(settings) | dict(changes or {}) | {"error_cb": self._on_error}
        self._patience, self._patience_when_stopping = settings.publish_timeout, settings.stop_grace / 3
        self._producer: Producer | None = None
        self._process = os.getpid()
        self._troubles: list[str] = []

    def publish(self, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None] = lambda: None) -> int:
        turn()
        delivery = Delivery(self._own_producer(), messages, stop, turn)
        try:
            delivery.run(self._patience, self._patience_when_stopping)
        finally:
            if not delivery.left_the_producer_clean:
                delivery.drop_the_rest()
                self.close()
                metrics.PRODUCERS_REPLACED.inc()
        acknowledged = delivery.acknowledged
        if acknowledged == len(messages):
            self._troubles.clear()
        elif delivery.failure or not stop.is_set():
            raise self._failed(acknowledged, delivery.failure)
        return acknowledged

    def close(self) -> None:
        """Takes a second at most. The next `publish` makes a new producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            bounded.within(_CLOSING, producer.close, "kafka-producer-close")

    def _own_producer(self) -> Producer:
        if self._process != os.getpid():
            _of_the_parent.append(self._producer)
            self._producer, self._process = None, os.getpid()
        if self._producer is None:
            self._producer = Producer(self._config, logger=_silent)
        return self._producer

    def _failed(self, acknowledged: int, failure: Failure | None) -> PublishFailed:
        if failure is None:
            failure = Failure(None, self._troubles[-1] if self._troubles else "_TIMED_OUT", Fault.BROKER)
        metrics.PUBLISH_FAILURES.labels(failure.error).inc()
        return PublishFailed(acknowledged, failure.error, failure.fault, failure.index)

    def _on_error(self, error: KafkaError) -> None:
        """What concerns the whole client. It repeats for as long as a broker is away: logged once."""
        if error.name() not in self._troubles:
            self._troubles.append(error.name())
            logger.warning("trouble with Kafka", extra={"error": error.name(), "fatal": error.fatal()})


_of_the_parent: list[Producer | None] = []
"""Kept for ever: to free a producer whose threads stayed behind in the parent process would hang."""
