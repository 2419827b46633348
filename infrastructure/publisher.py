"""Messages to Kafka, each with its own delivery known, in order per key whatever fails.

How the order is kept. Three settings work together: idempotence (a resend keeps its place), one request
in flight per broker (nothing later is on its way while an earlier one may still be refused), and
`enable.gapless.guarantee` (a refusal stops the client before it sends anything later). Messages never
time out inside the client, where later ones would pass them: when our own deadline is over, all that
is queued or in flight is dropped at once. So within a partition the topic only ever holds a prefix of
what was given, and publishing it again from its start adds repeats, never a later message before an
earlier one. Messages of other partitions may be in the topic although an earlier one is not; they
have other keys, and they will be repeated.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.cloud_events import Headers
from infrastructure.kafka_config import connection_config
from infrastructure.kafka_faults import Fault, fault_of
from infrastructure.settings import Settings

logger = logging.getLogger(__name__)

_TURN = 0.1
"""Seconds between two looks at the clock and the stop event."""
_REPORTS_EVERY = 100
"""Messages between two looks at the delivery reports, so that a refusal soon ends the sending."""
_LETTING_GO = 2.0
"""Longest wait for a producer to let go of its dropped messages, and again for its threads to end."""
_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


class OutgoingMessage(NamedTuple):
    """key: never empty, it decides the partition and so the order. position: of the stored event."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    position: int


@dataclass(eq=False)
class PublishFailed(CounterfoilError):
    """Not all messages were acknowledged.

    acknowledged: how many of the first messages were, without a gap. Others may be in the topic too.
    error: Kafka's or the client's name of the error. fault: where it lies.
    index: the message that it was reported for; None when for none in particular.

    What to do: publish again from the first message that was not acknowledged; after a fault of the
    message, that message alone, to see whether it is at fault itself or shared a batch with one that is.
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


def producer_config(settings: Settings) -> dict[str, Any]:
    """Holds the password: never log it. The text at the top has the reasons of the first four."""
    return connection_config(settings) | {
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 1,
        "enable.gapless.guarantee": True,
        "delivery.timeout.ms": int(settings.publish_timeout * 2_000) + 60_000,
        "acks": "all",
        "partitioner": "murmur2_random",  # as Java clients do; the client's own default agrees on few keys
        "allow.auto.create.topics": False,  # a misspelt topic must not come to life
        "topic.metadata.propagation.max.ms": 5_000,  # how long a missing topic may be one just being made
        "message.max.bytes": 1_000_000,  # below the brokers' default of 1,048,588 for a whole batch
        "batch.size": 262_144,  # what is larger is alone in its batch
        "compression.type": "lz4",
        "linger.ms": 5,  # only while messages are handed over: waiting for the reports sends at once
        "log_level": 2,  # errors come to the callback, which logs their names
    }


class KafkaPublisher:
    """A Publisher on one idempotent producer, made when first needed and again after each failure.

    For one thread. After a fork the child makes a producer of its own.
    """

    def __init__(self, settings: Settings, changes: Mapping[str, Any] | None = None) -> None:
        """changes: to the producer's configuration, such as a smaller queue."""
        self._config = producer_config(settings) | dict(changes or {}) | {"error_cb": self._on_error}
        self._patience, self._patience_when_stopping = settings.publish_timeout, settings.stop_grace / 2
        self._producer: Producer | None = None
        self._process = os.getpid()
        self._troubles: list[str] = []

    def publish(self, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None] = lambda: None) -> int:
        turn()
        attempt = _Attempt(self._own_producer(), messages, stop, turn)
        try:
            attempt.run(self._patience, self._patience_when_stopping)
        finally:
            if not attempt.left_the_producer_clean:
                self._discard()
        acknowledged = attempt.acknowledged
        if acknowledged == len(messages):
            self._troubles.clear()
        elif attempt.failure or not stop.is_set():
            raise self._failed(acknowledged, attempt.failure)
        return acknowledged

    def close(self) -> None:
        """Drops what is outstanding; takes a few seconds at most."""
        self._discard()

    def _own_producer(self) -> Producer:
        if self._process != os.getpid():
            _of_the_parent.append(self._producer)
            self._producer, self._process = None, os.getpid()
        if self._producer is None:
            self._producer = Producer(self._config)
        return self._producer

    def _discard(self) -> None:
        """Purged first, so that nothing of it is sent any more and every message gets its report."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_LETTING_GO)
            closing = Thread(target=producer.close, name="kafka-producer-close", daemon=True)
            closing.start()
            closing.join(_LETTING_GO)

    def _failed(self, acknowledged: int, failure: "_Failure | None") -> PublishFailed:
        if failure is None:
            failure = _Failure(None, self._troubles[-1] if self._troubles else "_TIMED_OUT", Fault.BROKER)
        metrics.PUBLISH_FAILURES.labels(failure.error).inc()
        return PublishFailed(acknowledged, failure.error, failure.fault, failure.index)

    def _on_error(self, error: KafkaError) -> None:
        """What concerns the whole client. It repeats for as long as a broker is away: logged once."""
        if error.name() not in self._troubles:
            self._troubles.append(error.name())
            logger.warning("trouble with Kafka", extra={"error": error.name(), "fatal": error.fatal()})


_of_the_parent: list[Producer | None] = []
"""Kept for ever: to free a producer whose threads stayed behind in the parent process would hang."""


@dataclass(frozen=True)
class _Failure:
    index: int | None
    error: str
    fault: Fault


class _Attempt:
    """One call of `publish`: what was handed to the producer, and what came back."""

    def __init__(
        self, producer: Producer, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None]
    ) -> None:
        self._producer, self._messages, self._stop, self._turn = producer, messages, stop, turn
        self._delivered = bytearray(len(messages))
        self._refused = False
        self.failure: _Failure | None = None

    def run(self, patience: float, patience_when_stopping: float) -> None:
        """Until every message has its report, one is refused, or the time is over."""
        self._deadline = monotonic() + patience
        for index, message in enumerate(self._messages):
            if index % _REPORTS_EVERY == 0:
                self._look_around()
            if not self._hand_over(index, message):
                break
        while len(self._producer) > 0 and not self._refused and monotonic() < self._deadline:
            self._turn()
            self._producer.flush(_TURN)  # what it returns is still undelivered, so go on by the length
            if self._stop.is_set():
                self._deadline = min(self._deadline, monotonic() + patience_when_stopping)

    @property
    def acknowledged(self) -> int:
        """How many of the first messages Kafka has for certain. Each counts by its own report."""
        first_without = self._delivered.find(0)
        return len(self._delivered) if first_without < 0 else first_without

    @property
    def left_the_producer_clean(self) -> bool:
        """A message that the client itself did not accept leaves no trace in it; a refusal by report does."""
        own_fault = self.failure is None or self.failure.fault is Fault.MESSAGE
        return own_fault and not self._refused and len(self._producer) == 0

    def _hand_over(self, index: int, message: OutgoingMessage) -> bool:
        """False when the message was not accepted or must not be sent any more; then neither must later ones."""
        if not message.key:
            self.failure = _Failure(index, "EMPTY_KEY", Fault.MESSAGE)
            return False
        while not (self._refused or self._stop.is_set() or monotonic() > self._deadline):
            try:
                self._producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    headers=list(message.headers),
                    on_delivery=partial(self._report, index),
                )
                return True
            except BufferError:
                self._look_around(_TURN)  # the queue is full; reports make room
            except KafkaException as refusal:
                self._fail(index, refusal.args[0])
                return False
        return False

    def _look_around(self, seconds: float = 0) -> None:
        self._turn()
        self._producer.poll(seconds)

    def _report(self, index: int, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._delivered[index] = 1
            return
        self._refused = True
        if error.code() not in _CONSEQUENCES:
            self._fail(index, error)

    def _fail(self, index: int, error: KafkaError) -> None:
        """The first failure is the cause, the others follow from it."""
        self.failure = self.failure or _Failure(index, error.name(), fault_of(error))
