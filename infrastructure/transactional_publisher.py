"""Messages and the relay's position in one Kafka transaction: whoever reads only what is committed sees no repeats.

How it holds: the position is an offset that is committed with the messages that it covers. A new producer of the
shard first fences the older ones, which ends what they had begun, one way or the other; then it reads the
position. So nothing that is committed is published again, and nothing that is not committed is passed. Inside a
transaction the messages of a key go to the client in order; when one of them fails, none of them is committed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event
from typing import Any

from confluent_kafka import KafkaException

from infrastructure import metrics
from infrastructure.delivery import Failure, OutgoingMessage
from infrastructure.kafka_faults import Fault
from infrastructure.kept_marks import KeptMarks
from infrastructure.patience import Patience
from infrastructure.producer import OwnProducer, producer_config
from infrastructure.publisher import Mark, PublishFailed, Sending
from infrastructure.settings import Settings
from infrastructure.transaction import Transaction, in_slices

_LONGEST_TRANSACTION = 900_000
"""Milliseconds: brokers allow no more, unless they are told to."""


def transactional_config(settings: Settings, name: str) -> dict[str, Any]:
    """Holds the password: never log it."""
    longest = min(_LONGEST_TRANSACTION, max(1_000, int(settings.publish_timeout * 1_000)))
    return producer_config(settings) | {
        "transactional.id": name,
        "transaction.timeout.ms": longest,
        "delivery.timeout.ms": longest,
        "delivery.report.only.error": True,  # that all were delivered is what a commit says
    }


class TransactionalPublisher:
    """A Publisher for one shard of one relay, for one thread and one process.

    Guarantees, beside those of the protocol: whoever reads committed messages only sees each message once, and
    those of a key in order, whatever is killed; `wait` answers with all messages or with 0.
    Not guaranteed: that `wait` knows of every commit. When its answer was lost, `resume` finds out.
    """

    def __init__(
        self, settings: Settings, name: str, topics: Sequence[str], changes: Mapping[str, Any] | None = None
    ) -> None:
        """name: of the shard, its transactional id and the group that keeps its marks; nobody else's in the cluster.
        topics: that the relay publishes to. changes: to the producer's configuration, such as a smaller queue.
        """
        self.producer = OwnProducer(transactional_config(settings, name) | dict(changes or {}))
        self._marks = KeptMarks(settings, name, topics)
        self._patience, self._patience_when_stopping = settings.publish_timeout, settings.stop_grace / 3
        self.reached = Mark(0)
        """What was committed up to, by the last resume or commit that succeeded."""

    def resume(self, stored: Mark, turn: Callable[[], None]) -> Mark:
        """A third of the time to stop is its longest wait, because it hears of no stop."""
        self.producer.close()
        turn()
        patience = Patience(self._patience_when_stopping, self._patience_when_stopping)
        try:
            producer = self.producer.get()
            in_slices(producer.init_transactions, producer, turn, patience.is_over)
            kept = self._marks.read(turn, patience)
        except BaseException as error:
            self.producer.close()
            if isinstance(error, KafkaException):
                raise _failed(Failure.of(error), self.producer.complaint) from None
            raise
        self.reached = _further(stored, kept)
        return self.reached

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Callable[[], None]) -> Sending:
        """Raises RuntimeError when it was not resumed, or not again after a failure."""
        if not self.producer.is_made:
            raise RuntimeError("resume comes before the first send, and after each failure")
        turn()
        if not messages:
            return _NothingToSend()
        sending = _Sending(self, messages, covers, Patience(self._patience, self._patience_when_stopping))
        try:
            sending.start(turn)
        except BaseException:
            sending.drop()
            raise
        return sending

    def close(self) -> None:
        """Takes a second at most. `resume` makes a new producer."""
        self.producer.close()
        self._marks.close()

    def transaction(
        self, messages: Sequence[OutgoingMessage], covers: Mark, alone: Collection[int] = ()
    ) -> Transaction:
        """Not begun yet. alone: indices of messages that are to share no request."""
        mark, group = self._marks.offsets(covers), self._marks.group
        return Transaction(self.producer.get(), messages, mark, group, alone)


class _Sending:
    """One transaction, or a second one when a request with several messages was refused: there each suspect goes
    alone, which tells the culprit from its neighbours, and does without one where only the request was too large."""

    def __init__(
        self, publisher: TransactionalPublisher, messages: Sequence[OutgoingMessage], covers: Mark, patience: Patience
    ) -> None:
        self._publisher, self._messages, self._covers, self._patience = publisher, messages, covers, patience
        self._transaction = publisher.transaction(messages, covers)

    def start(self, turn: Callable[[], None]) -> None:
        self._transaction.hand_over(turn)

    def wait(self, stop: Event, turn: Callable[[], None]) -> int:
        try:
            failure, suspects = self._commit(stop, turn)
            if len(suspects) > 1 and not stop.is_set():
                failure = self._once_more(suspects, stop, turn)
        except BaseException:
            self.drop()
            raise
        producer = self._publisher.producer
        if failure is None:
            producer.is_well()
            self._publisher.reached = self._covers
            return len(self._messages)
        producer.replace()
        if stop.is_set():
            return 0
        raise _failed(failure, producer.complaint)

    def drop(self) -> None:
        self._transaction.abort()
        self._publisher.producer.replace()

    def _commit(self, stop: Event, turn: Callable[[], None]) -> tuple[Failure | None, Sequence[int]]:
        """Why not, when it is not committed, and which messages are suspected."""
        failure = self._transaction.commit(stop, turn, self._patience)
        if failure is None:
            return None, ()
        self._transaction.abort()
        return self._transaction.cause(failure)

    def _once_more(self, suspects: Sequence[int], stop: Event, turn: Callable[[], None]) -> Failure | None:
        """With a new producer, because the refused one lost count of its messages in the topic. Like each new one it
        looks first whether somebody else has published them meanwhile."""
        before = self._publisher.reached
        if self._publisher.resume(before, turn) != before:
            return Failure(None, "_FENCED", Fault.PRODUCER)
        self._transaction = self._publisher.transaction(self._messages, self._covers, suspects)
        self._transaction.hand_over(turn)
        return self._commit(stop, turn)[0]


class _NothingToSend:
    """No message, no transaction: the checkpoint in the database covers what became none."""

    def wait(self, stop: Event, turn: Callable[[], None]) -> int:  # noqa: ARG002  as the protocol has it
        return 0

    def drop(self) -> None:
        return


def _further(stored: Mark, kept: Sequence[Mark]) -> Mark:
    """What was kept under another generation says nothing: an operator has moved the position since."""
    comparable = [mark for mark in kept if mark.generation == stored.generation]
    return max([stored, *comparable], key=lambda mark: mark.position)


def _failed(failure: Failure, complaint: str | None = None) -> PublishFailed:
    error = complaint if complaint and failure.error == "_TIMED_OUT" else failure.error
    metrics.PUBLISH_FAILURES.labels(error).inc()
    return PublishFailed(0, error, failure.fault, failure.index)
