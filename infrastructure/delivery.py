"""One batch on its way to Kafka: what was handed to the client, and what came back of it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic
from typing import NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from infrastructure.cloud_events import Headers
from infrastructure.kafka_faults import Fault, fault_of
from infrastructure.patience import Patience

_TURN = 0.1
"""Seconds between two looks at the clock and the stop event."""
_LOOK_AROUND_EVERY = 100
"""Messages between two looks at reports and lease, so that a refusal or a loss soon ends the sending."""
_AT_ONCE = 0.001
"""Long enough for the client to send what it has, instead of waiting for more."""
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

    @classmethod
    def of(cls, error: KafkaException, index: int | None = None) -> Self:
        cause = error.args[0]
        return cls(index, cause.name(), fault_of(cause))


class Delivery:
    """The messages of one `send`, in order per key and topic.

    A message is handed over once its predecessor of that key and topic is acknowledged, and only then.
    """

    def __init__(self, producer: Producer, messages: Sequence[OutgoingMessage]) -> None:
        self._producer, self._messages = producer, messages
        self._delivered = bytearray(len(messages))
        self._ready, self._followers = _firsts_and_followers(messages)
        self._until = len(messages)  # nothing from this index on is handed over any more
        self._suspects: list[int] = []
        self._alone: int | None = None
        self._dropped = False
        self.failure: Failure | None = None

    def hand_over(self, turn: Callable[[], None]) -> None:
        """What may go now, as far as the client's queue takes it. `turn` is called first, and now and then."""
        self._look_around(turn)
        handed_over = 0
        while self._ready and self._hand_over(self._ready.popleft()):
            handed_over += 1
            if handed_over % _LOOK_AROUND_EVERY == 0:
                self._look_around(turn)

    def run(self, stop: Event, turn: Callable[[], None], patience: Patience) -> None:
        """Until every message has its report, one is refused for good, or the time is over."""
        while self._under_way and not patience.is_over(stop):
            if stop.is_set():
                self._until = 0
            self._try_one_alone_when_no_other_is_left()
            self.hand_over(turn)
            self._wait_for_reports()

    def drop_the_rest(self) -> None:
        """Nothing of it is sent any more, and every message gets its report, if only that it was dropped."""
        self._until = 0
        if self._dropped or len(self._producer) == 0:
            return
        self._dropped = True
        self._producer.purge()
        deadline = monotonic() + _LETTING_GO
        while len(self._producer) > 0 and monotonic() < deadline:
            self._serve(self._producer.flush, _TURN)

    @property
    def acknowledged(self) -> int:
        """How many of the first messages Kafka has for certain. Each counts by its own report."""
        first_without = self._delivered.find(0)
        return len(self._delivered) if first_without < 0 else first_without

    @property
    def is_complete(self) -> bool:
        return self.acknowledged == len(self._messages)

    @property
    def left_the_producer_clean(self) -> bool:
        """A refused message leaves no trace; other failures do, and so does what is or was still under way."""
        well = self.failure is None or self.failure.fault is Fault.MESSAGE
        return well and not self._dropped and len(self._producer) == 0

    @property
    def _under_way(self) -> bool:
        return len(self._producer) > 0 or bool(self._ready) or bool(self._suspects and self._until)

    def _try_one_alone_when_no_other_is_left(self) -> None:
        if self._suspects and not self._ready and len(self._producer) == 0:
            self._alone = min(self._suspects)
            self._suspects.remove(self._alone)
            self._ready.append(self._alone)

    def _wait_for_reports(self) -> None:
        """All that are outstanding; when messages wait for a predecessor only the next ones, which may let one go."""
        outstanding = len(self._producer)
        self._serve(self._producer.flush, _AT_ONCE if self._followers else _TURN)
        if self._followers and len(self._producer) == outstanding > 0:
            self._serve(self._producer.poll, _TURN)

    def _hand_over(self, index: int) -> bool:
        """False when the client's queue is full."""
        if index >= self._until:
            return True
        message = self._messages[index]
        if not message.key:
            self._fail(Failure(index, "EMPTY_KEY", Fault.MESSAGE))
            return True
        try:
            self._producer.produce(
                message.topic,
                message.value,
                message.key,
                headers=list(message.headers),
                on_delivery=partial(self._report, index),
            )
        except BufferError:
            self._ready.appendleft(index)
            return False
        except KafkaException as refusal:
            self._fail(Failure.of(refusal, index))
        return True

    def _look_around(self, turn: Callable[[], None]) -> None:
        turn()
        self._serve(self._producer.poll, 0)

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
            if index in self._followers:
                self._ready.append(self._followers.pop(index))
        elif index == self._alone or fault_of(error) is not Fault.MESSAGE:
            self._fail(Failure(index, error.name(), fault_of(error)))
        elif not self._dropped:
            self._suspects.append(index)  # its batch was refused, perhaps for a neighbour: try it alone

    def _fail(self, failure: Failure) -> None:
        """Of refused messages the first in order counts, and all before it still go. Any other failure ends it:
        the first one is the cause, the others may only follow from it."""
        if self._dropped or (self.failure and self.failure.fault is not Fault.MESSAGE):
            return
        if failure.fault is not Fault.MESSAGE or failure.index is None:
            self.failure, self._until = failure, 0
        elif failure.index < self._until:
            self.failure, self._until = failure, failure.index


def _firsts_and_followers(messages: Sequence[OutgoingMessage]) -> tuple[deque[int], dict[int, int]]:
    """Indices of the first message of each key and topic; and after each message the next of its key, if any."""
    last: dict[tuple[str, bytes], int] = {}
    firsts: deque[int] = deque()
    followers: dict[int, int] = {}
    for index, message in enumerate(messages):
        before = last.get(key := (message.topic, message.key))
        if before is None:
            firsts.append(index)
        else:
            followers[before] = index
        last[key] = index
    return firsts, followers
