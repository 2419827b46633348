"""One Kafka transaction: messages, and the mark of what they cover; all of it or nothing.

The calls that wait for Kafka are made in slices: the client goes on with a call that ran out of time, and the
same call made again takes it up. One of them cannot be made so, `send_offsets_to_transaction`: whatever time it is
given, it waits as long as a transaction may last. It is made in a thread of its own, and waited for in slices.
"""

from collections.abc import Callable, Collection, Sequence
from threading import Event, Thread
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from infrastructure import bounded
from infrastructure.delivery import Failure, OutgoingMessage
from infrastructure.kafka_faults import Fault, fault_of
from infrastructure.patience import Patience

_SLICE = 0.1
"""Seconds between two looks at the clock, the stop event and the lease."""
_PAUSE = 0.01
"""Seconds before Kafka is asked again to take the mark."""
_LOOK_AROUND_EVERY = 100
"""Messages between two looks at the lease while they are handed over."""
_DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_ABORTING = 1.0
"""Longest wait for Kafka to acknowledge an abort."""


class _Report(NamedTuple):
    """That a message of this transaction was not delivered."""

    error: KafkaError
    topic: str | None
    key: bytes | None
    value: bytes | None


class Transaction:
    """For a producer with a transactional id that was initialised. Used once: hand_over, commit, else abort.

    Guarantees: commit says None only when Kafka has committed all messages and the mark. Whoever reads
    committed messages only sees all of them or none, and those of a key in the order given here.
    """

    def __init__(
        self,
        producer: Producer,
        messages: Sequence[OutgoingMessage],
        mark: Sequence[TopicPartition],
        group: object,
        alone: Collection[int] = (),
    ) -> None:
        """The producer's configuration asks for reports of failures only. alone: indices of messages that are to
        share no request, so that a refusal is their own."""
        self._producer, self._messages, self._mark, self._group = producer, messages, list(mark), group
        self._alone = frozenset(alone)
        self._reports: list[_Report] = []  # its own: a producer that was given up may report long after
        self._handed_over = 0
        self._failure: Failure | None = None
        self._mark_on_its_way: Thread | None = None
        self._mark_taken = False
        self._mark_failed: KafkaException | None = None
        self._given_up = Event()

    def hand_over(self, turn: Callable[[], None]) -> None:
        """Begins, hands over what the client's queue takes, and lets the client start with the mark meanwhile."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._failure = Failure.of(error)
            return
        if not self._alone:
            self._hand_over(len(self._messages), turn)
        self._mark_on_its_way = bounded.start(self._send_the_mark, "kafka-transaction-mark")

    def commit(self, stop: Event, turn: Callable[[], None], patience: Patience) -> Failure | None:
        """None when it is committed. Otherwise it is not, or nobody knows: call `abort`, then `cause`.

        Gives up when the patience is over. Raises whatever `turn` raises.
        """
        try:
            self._hand_over_the_rest(stop, turn, patience)
            if self._failure is None and self._handed_over < len(self._messages):
                self._failure = Failure(None, "_INCONSISTENT", Fault.PRODUCER)  # a report says more: see `cause`
            if self._failure is None:
                self._wait_for_the_mark(stop, turn, patience)
                self._in_slices(self._producer.commit_transaction, stop, turn, patience)
        except KafkaException as error:
            return Failure.of(error)
        except SystemError:  # the client raised its own death while it reported something
            return Failure(None, "_FATAL", Fault.PRODUCER)
        return self._failure

    def abort(self) -> bool:
        """True when Kafka has acknowledged it, and the producer can go on. Takes a second at most."""
        self._given_up.set()
        patience, never = Patience(_ABORTING, _ABORTING), Event()
        try:
            self._in_slices(self._producer.abort_transaction, never, lambda: None, patience)
        except (KafkaException, SystemError, RuntimeError):  # the last one: it is closed already
            return False
        return True

    def cause(self, failure: Failure) -> tuple[Failure, Sequence[int]]:
        """After an abort: what was behind it, by the reports that came with it; and the messages that may be at
        fault, by index. One alone is: a request that is refused is reported for all messages in it."""
        reports = [report for report in self._reports if report.error.code() not in _DROPPED]
        refused = [report for report in reports if fault_of(report.error) is Fault.MESSAGE]
        if refused:
            places = {(m.topic, m.key, m.value): index for index, m in enumerate(self._messages)}
            suspects = sorted(
                {places[report.topic or "", report.key or b"", report.value or b""] for report in refused}
            )
            index = suspects[0] if len(suspects) == 1 else None
            return Failure(index, refused[0].error.name(), Fault.MESSAGE), suspects
        if reports:
            return Failure(None, reports[0].error.name(), fault_of(reports[0].error)), ()
        return failure, ()

    def _hand_over_the_rest(self, stop: Event, turn: Callable[[], None], patience: Patience) -> None:
        while self._handed_over < len(self._messages) and not self._reports and not self._failure:
            turn()
            if patience.is_over(stop):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if self._handed_over in self._alone:
                self._flush(stop, turn, patience)
                self._hand_over(self._handed_over + 1, turn)
                self._flush(stop, turn, patience)
            else:
                self._hand_over(self._next_alone(), turn)
                self._producer.poll(0 if self._handed_over == self._next_alone() else _SLICE)

    def _next_alone(self) -> int:
        return min((index for index in self._alone if index >= self._handed_over), default=len(self._messages))

    def _hand_over(self, until: int, turn: Callable[[], None]) -> None:
        """As far as the client's queue takes it, and not past a message that the client refuses."""
        produce, report = self._producer.produce, self._report
        for index in range(self._handed_over, until):
            if index % _LOOK_AROUND_EVERY == 0:
                turn()
            topic, key, value, headers, _ = self._messages[index]
            if not key:
                self._failure = Failure(index, "EMPTY_KEY", Fault.MESSAGE)
                return
            try:
                produce(topic, value, key, headers=list(headers), on_delivery=report)
            except BufferError:
                return
            except KafkaException as error:
                self._failure = Failure.of(error, index)
                return
            self._handed_over = index + 1

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._reports.append(_Report(error, message.topic(), message.key(), message.value()))

    def _flush(self, stop: Event, turn: Callable[[], None], patience: Patience) -> None:
        while len(self._producer) > 0:
            turn()
            if patience.is_over(stop):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            self._producer.flush(_SLICE)

    def _send_the_mark(self) -> None:
        """In its thread, beside everything else. Kafka may answer that it is busy with the last transaction."""
        while not self._given_up.is_set():
            try:
                self._producer.send_offsets_to_transaction(self._mark, self._group, _SLICE)
                self._mark_taken = True
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    self._mark_failed = error
                    return
            self._given_up.wait(_PAUSE)

    def _wait_for_the_mark(self, stop: Event, turn: Callable[[], None], patience: Patience) -> None:
        assert self._mark_on_its_way is not None
        while self._mark_on_its_way.is_alive():
            turn()
            if patience.is_over(stop):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            self._mark_on_its_way.join(_SLICE)
        if not self._mark_taken:  # its thread may have ended of anything
            raise self._mark_failed or KafkaException(KafkaError(KafkaError._FATAL))

    def _in_slices(
        self, call: Callable[[float], object], stop: Event, turn: Callable[[], None], patience: Patience
    ) -> None:
        """Makes the call again until it is done. Raises what ended it."""
        in_slices(call, self._producer, turn, lambda: patience.is_over(stop))


def in_slices(
    call: Callable[[float], object], producer: Producer, turn: Callable[[], None], is_over: Callable[[], bool]
) -> None:
    """Makes the call in slices until it is done. Raises KafkaException when it failed, or the time is over."""
    while True:
        turn()
        try:
            call(_SLICE)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or is_over():
                raise
            if error.args[0].code() != KafkaError._TIMED_OUT:
                producer.poll(_SLICE)  # it answered at once: not now
