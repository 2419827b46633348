"""Messages to Kafka, each with its own delivery known, in order per key whatever fails.

How the order is kept at least once: a message is handed to the client only once the message before it of the
same key and topic is acknowledged. So no failure, no retry inside the client and no delay of a report can let it
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
from time import monotonic
from typing import Any, Protocol

from confluent_kafka import KafkaError, Producer

from domain.errors import CounterfoilError
from infrastructure import bounded, metrics
from infrastructure.delivery import Delivery, Failure, OutgoingMessage
from infrastructure.kafka_config import connection_config
from infrastructure.kafka_faults import Fault
from infrastructure.settings import Settings

__all__ = ["KafkaPublisher", "Mark", "OutgoingMessage", "PublishFailed", "Publisher", "Sending", "producer_config"]

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


@dataclass(frozen=True)
class Mark:
    """What one shard of a relay has published.

    position: of the last stored event that is covered. generation: how often an operator has moved the position
    back or changed the shards. anchor: fingerprint of the stored event at `position`, by which a store that was
    set back is found; None when it is not known.
    """

    position: int
    generation: int = 0
    anchor: bytes | None = None


class Sending(Protocol):
    """Messages on their way. Exactly one of its methods is called, once."""

    def wait(self, stop: Event, turn: Callable[[], None]) -> int:
        """How many of the first messages are acknowledged, without a gap: all, or fewer when told to stop.

        Effectively once: all of them together with what they cover, or 0.
        `turn` is called several times a second; once it has raised, nothing more is sent.
        Raises PublishFailed, and whatever `turn` raises.
        """
        ...

    def drop(self) -> None:
        """Gives up what is under way, when it has become useless or forbidden. Takes a few seconds at most."""
        ...


class Publisher(Protocol):
    """Takes messages in order, for one thread.

    One at a time: `resume`, then any number of `send`, each of them waited for or dropped before the next.
    After PublishFailed, after `drop`, and after any error of a `turn`, `resume` again.
    `turn` is called before anything is sent, and several times a second while it works.
    """

    def resume(self, stored: Mark, turn: Callable[[], None]) -> Mark:
        """What is published for certain: go on behind that.

        stored: what the database knows. At least once: that is the answer. Effectively once: no older producer of
        this shard can publish any more; the answer is the higher of `stored` and what Kafka keeps, when that is
        of the same generation, with the anchor that came with it.
        Raises PublishFailed, with 0 acknowledged, and whatever `turn` raises.
        """
        ...

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Callable[[], None]) -> Sending:
        """Hands over what can be handed over now, and returns while it is under way.

        covers: what is published once all of these are. Raises whatever `turn` raises; failures come with `wait`.
        """
        ...

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

    def resume(self, stored: Mark, turn: Callable[[], None]) -> Mark:
        turn()
        return stored

    def send(
        self,
        messages: Sequence[OutgoingMessage],
        covers: Mark,  # noqa: ARG002  the database alone keeps it
        turn: Callable[[], None],
    ) -> Sending:
        delivery = Delivery(self._own_producer(), messages)
        sending = _Sending(delivery, self._patience, self._patience_when_stopping, self._settle)
        try:
            delivery.hand_over(turn)
        except BaseException:
            sending.drop()
            raise
        return sending

    def publish(self, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None] = lambda: None) -> int:
        if stop.is_set():
            return 0
        return self.send(messages, Mark(0), turn).wait(stop, turn)

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

    def _settle(self, delivery: Delivery) -> str | None:
        """After a delivery, however it ended. The client's last complaint, if it had any."""
        if not delivery.left_the_producer_clean:
            delivery.drop_the_rest()
            self.close()
            metrics.PRODUCERS_REPLACED.inc()
        complaint = self._troubles[-1] if self._troubles else None
        if delivery.is_complete:
            self._troubles.clear()
        return complaint

    def _on_error(self, error: KafkaError) -> None:
        """What concerns the whole client. It repeats for as long as a broker is away: logged once."""
        if error.name() not in self._troubles:
            self._troubles.append(error.name())
            logger.warning("trouble with Kafka", extra={"error": error.name(), "fatal": error.fatal()})


class _Sending:
    """One delivery, and what is left to do after it."""

    def __init__(
        self,
        delivery: Delivery,
        patience: float,
        patience_when_stopping: float,
        settle: Callable[[Delivery], str | None],
    ) -> None:
        self._delivery, self._settle = delivery, settle
        self._deadline, self._patience_when_stopping = monotonic() + patience, patience_when_stopping

    def wait(self, stop: Event, turn: Callable[[], None]) -> int:
        delivery, complaint = self._delivery, None
        try:
            delivery.run(stop, turn, self._deadline, self._patience_when_stopping)
        finally:
            complaint = self._settle(delivery)
        if not delivery.is_complete and (delivery.failure or not stop.is_set()):
            failure = delivery.failure or Failure(None, complaint or "_TIMED_OUT", Fault.BROKER)
            metrics.PUBLISH_FAILURES.labels(failure.error).inc()
            raise PublishFailed(delivery.acknowledged, failure.error, failure.fault, failure.index)
        return delivery.acknowledged

    def drop(self) -> None:
        self._delivery.drop_the_rest()
        self._settle(self._delivery)


_of_the_parent: list[Producer | None] = []
"""Kept for ever: to free a producer whose threads stayed behind in the parent process would hang."""
