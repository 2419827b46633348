"""One batch on its way to Kafka: what was handed to the client, and what came back of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from infrastructure.cloud_events import Headers
from infrastructure.kafka_faults import Fault, fault_of

_TURN = 0.1
"""Seconds between two looks at the clock and the stop event."""
_LOOK_AROUND_EVERY = 100
"""Messages between two looks at reports and lease, so that a refusal or a loss soon ends the sending."""
_LETTING_GO = 1.0
"""Longest wait for the client to report what it was told to drop."""


class OutgoingMessage(NamedTuple):
    """key: never empty, it decides the partition and so the order. position: of the stored event."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    position: int


@dataclass(frozen=True)
class Failure:
    index: int | None
    error: str
    fault: Fault


class Delivery:
    """One call of `publish`: what was handed to the producer, and what came back."""

    def __init__(
        self, producer: Producer, messages: Sequence[OutgoingMessage], stop: Event, turn: Callable[[], None]
    ) -> None:
        self._producer, self._messages, self._stop, self._turn = producer, messages, stop, turn
        self._delivered = bytearray(len(messages))
        self._alone = self._dropping = False
        self._suspects: list[int] = []
        self.failure: Failure | None = None

    def run(self, patience: float, patience_when_stopping: float) -> None:
        """Until every message has its report, one is refused for good, or the time is over."""
        self._deadline, self._patience_when_stopping = monotonic() + patience, patience_when_stopping
        for indices in _rounds(self._messages):
            self._send(indices)
            suspects, self._suspects = sorted(self._suspects), []
            for suspect in suspects:
                self._send([suspect])
            if not all(self._delivered[index] for index in indices):
                return

    def drop_the_rest(self) -> None:
        """Nothing of it is sent any more, and every message gets its report, if only that it was dropped."""
        self._dropping = True
        self._producer.purge()
        until = monotonic() + _LETTING_GO
        while len(self._producer) > 0 and monotonic() < until:
            self._serve(self._producer.flush, _TURN)

    @property
    def acknowledged(self) -> int:
        """How many of the first messages Kafka has for certain. Each counts by its own report."""
        first_without = self._delivered.find(0)
        return len(self._delivered) if first_without < 0 else first_without

    @property
    def left_the_producer_clean(self) -> bool:
        """A refused message leaves no trace; other failures do, and so does what is still under way."""
        well = self.failure is None or self.failure.fault is Fault.MESSAGE
        return well and len(self._producer) == 0

    @property
    def _ended(self) -> bool:
        return self.failure is not None or self._stop.is_set() or monotonic() > self._deadline

    def _send(self, indices: Sequence[int]) -> None:
        """Hands these over and waits for their reports, for no longer than the time that is left."""
        self._alone = len(indices) == 1
        for count, index in enumerate(indices):
            if count % _LOOK_AROUND_EVERY == 0:
                self._look_around()
            if not self._hand_over(index):
                break
        while len(self._producer) > 0 and monotonic() < self._deadline:
            self._turn()
            self._serve(self._producer.flush, _TURN)  # by its length: what flush returns is undelivered
            if self._stop.is_set():
                self._deadline = min(self._deadline, monotonic() + self._patience_when_stopping)

    def _hand_over(self, index: int) -> bool:
        """False when the message was not accepted or must not be sent any more; then neither must later ones."""
        message = self._messages[index]
        if not message.key:
            self._fail(Failure(index, "EMPTY_KEY", Fault.MESSAGE))
        while not self._ended:
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
                self._refuse(index, refusal.args[0])
        return False

    def _look_around(self, seconds: float = 0) -> None:
        self._turn()
        self._serve(self._producer.poll, seconds)

    def _serve(self, reports: Callable[[float], int], seconds: float) -> None:
        """Takes in what was reported.

        From here the client raises its own death. A report that arrives with it may find that error set:
        it is lost then, and its message counts as not delivered.
        """
        try:
            reports(seconds)
        except (KafkaException, SystemError):
            self._fail(Failure(None, "_FATAL", Fault.PRODUCER))

    def _report(self, index: int, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._delivered[index] = 1
        elif self._alone or fault_of(error) is not Fault.MESSAGE:
            self._refuse(index, error)
        elif not self._dropping:
            self._suspects.append(index)  # its batch was refused, perhaps for a neighbour: try it alone

    def _refuse(self, index: int, error: KafkaError) -> None:
        self._fail(Failure(index, error.name(), fault_of(error)))

    def _fail(self, failure: Failure) -> None:
        """The first failure is the cause; the others may only follow from it."""
        if not self._dropping:
            self.failure = self.failure or failure


def _rounds(messages: Sequence[OutgoingMessage]) -> list[list[int]]:
    """Indices of messages that may be under way together: the n-th message of a key is in the n-th round."""
    rounds: list[list[int]] = []
    earlier: Counter[tuple[str, bytes]] = Counter()
    for index, message in enumerate(messages):
        key = (message.topic, message.key)
        if earlier[key] == len(rounds):
            rounds.append([])
        rounds[earlier[key]].append(index)
        earlier[key] += 1
    return rounds
