"""Messages to Kafka, each with its own delivery known, in order per key whatever fails.

How the order is kept at least once: a message is handed to the client only once the message before it of the
same key and topic is acknowledged. So no failure, no retry inside the client and no delay of a report can let it
pass, whatever the client and the broker do with what is in flight. Publishing again what was not
acknowledged adds repeats, never a later message of a key before an earlier one. Between keys, and
between topics, no order is kept.

The price: many messages of one key in one batch go one after another, a round trip each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.delivery import Delivery, Failure, OutgoingMessage
from infrastructure.kafka_faults import Fault
from infrastructure.patience import Patience
from infrastructure.producer import OwnProducer, producer_config
from infrastructure.settings import Settings

__all__ = ["KafkaPublisher", "Mark", "OutgoingMessage", "PublishFailed", "Publisher", "Sending"]


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

    def close(self) -> None: ...


class KafkaPublisher:
    """A Publisher on one idempotent producer, made when first needed and again after each failure.

    For one thread. After a fork the child makes a producer of its own.
    """

    def __init__(self, settings: Settings, changes: Mapping[str, Any] | None = None) -> None:
        """changes: to the producer's configuration, such as a smaller queue."""
        self._producer = OwnProducer(producer_config(settings) | dict(changes or {}))
        self._patience, self._patience_when_stopping = settings.publish_timeout, settings.stop_grace / 3

    def resume(self, stored: Mark, turn: Callable[[], None]) -> Mark:
        turn()
        return stored

    def send(
        self,
        messages: Sequence[OutgoingMessage],
        covers: Mark,  # noqa: ARG002  the database alone keeps it
        turn: Callable[[], None],
    ) -> Sending:
        sending = _Sending(self._producer, messages, Patience(self._patience, self._patience_when_stopping))
        try:
            sending.start(turn)
        except BaseException:
            sending.drop()
            raise
        return sending

    def close(self) -> None:
        """Takes a second at most. The next `send` makes a new producer."""
        self._producer.close()


class _Sending:
    """One delivery, and what becomes of the producer after it."""

    def __init__(self, producer: OwnProducer, messages: Sequence[OutgoingMessage], patience: Patience) -> None:
        self._producer, self._patience = producer, patience
        self._delivery = Delivery(producer.get(), messages)

    def start(self, turn: Callable[[], None]) -> None:
        self._delivery.hand_over(turn)

    def wait(self, stop: Event, turn: Callable[[], None]) -> int:
        delivery = self._delivery
        try:
            delivery.run(stop, turn, self._patience)
        except BaseException:
            self.drop()
            raise
        if not delivery.left_the_producer_clean:
            self.drop()
        if delivery.is_complete:
            self._producer.is_well()
        elif delivery.failure or not stop.is_set():
            raise self._failed(delivery.failure)
        return delivery.acknowledged

    def drop(self) -> None:
        self._delivery.drop_the_rest()
        if not self._delivery.left_the_producer_clean:
            self._producer.replace()

    def _failed(self, failure: Failure | None) -> PublishFailed:
        if failure is None:
            failure = Failure(None, self._producer.complaint or "_TIMED_OUT", Fault.BROKER)
        metrics.PUBLISH_FAILURES.labels(failure.error).inc()
        return PublishFailed(self._delivery.acknowledged, failure.error, failure.fault, failure.index)
