"""Topics read from any place to their end, all partitions together in the order of time. Joins no group, commits
nothing."""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from domain.errors import CounterfoilError
from infrastructure import bounded
from infrastructure.kafka_config import connection_config
from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.topic_configs import topic_configs
from projections.rebuilding.lane import Lane, NotToBeHad, size_of

_silent = logging.getLogger(f"{__name__}.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

ANSWER_SECONDS = 5.0
"""Longest wait for one answer of the cluster."""
TURN_SECONDS = 0.5
"""Longest wait for records before the caller may look whether it is to stop."""
SILENCE_SECONDS = 30.0
"""Without a word from Kafka for so long, reading is given up."""
LEAVE_SECONDS = 2.0

MOST_WAITING = 20_000
MOST_BYTES_WAITING = 40 * 2**20
"""Of all partitions, read ahead of their turn. Each may have its share of that; then it is paused, and those whose
records are older go first."""
LEAST_WAITING = 200
LEAST_BYTES_WAITING = 256 * 2**10
"""Of one partition, however many there are: with less it would be paused all the time."""

_FIRST, _END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]

_NEVER_PASSES = {
    KafkaError._FATAL,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}


@dataclass(eq=False)
class TopicsUnreadable(CounterfoilError):
    """Kafka did not give what was asked for. topics: in question. error: Kafka's name of the reason.

    What to do: see that Kafka is up, the topics are there and may be read; then ask again.
    """

    topics: Sequence[str]
    error: str

    def __str__(self) -> str:
        return f"{', '.join(self.topics)} cannot be read ({self.error}). See that Kafka answers, and run it again."


@dataclass(eq=False)
class RecordsGone(CounterfoilError):
    """What comes next was deleted before it was read, by retention or with its topic.

    What to do: begin anew with what there is, if that will do; else read from the store.
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return (
            f"The records of {self.topic}/{self.partition} from offset {self.offset} on are gone: they were deleted "
            "before they were read, or the topic was made anew. Abandon this rebuild and begin it again."
        )


class Read(NamedTuple):
    """records: each with the number of its partition in the reader's list. reached: offsets that come next.

    ended: all is read that was there when the round began.
    """

    records: Sequence[tuple[int, Record]]
    reached: Sequence[int]
    ended: bool


class TopicReader:
    """Committed records only. Belongs to one thread.

    Guarantees: the records of a partition come in their order, each once for each time that its place is read.
    Between partitions the one with the earlier time comes first, as far as their times ascend. What is read
    ahead is bounded, whatever the partitions hold: over all of them by MOST_WAITING and MOST_BYTES_WAITING, or where
    they are so many that their shares would be smaller, by the least share times their number; and by what the client
    brings at once. Nothing is skipped: where records are missing, RecordsGone; and a gap is read twice (see Lane).
    """

    def __init__(self, settings: Settings, name: str, topics: Sequence[str]) -> None:
        """name: of a group that nobody joins; Kafka may ask for a right to it. Raises TopicsUnreadable."""
        self._topics = topics
        self._error = "_TIMED_OUT"
        config: dict[str, Any] = {
            "group.id": name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # never to go on elsewhere
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": 16_384,
            "fetch.wait.max.ms": 50,  # a new place is read only when the fetch that waits at the old one is over
        }
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": self._on_error}
        # Questions have a connection of their own: on the consumer's they would queue behind a fetch that waits.
        self._admin = AdminClient(connection_config(settings) | quiet)
        self._consumer = Consumer(connection_config(settings) | config | quiet, logger=_silent)
        try:
            self._lanes = [Lane(place) for place in self._find()]
        except BaseException:
            self.close()
            raise
        self._most = max(LEAST_WAITING, MOST_WAITING // len(self._lanes))
        self._most_bytes = max(LEAST_BYTES_WAITING, MOST_BYTES_WAITING // len(self._lanes))
        self._by_place = {lane.place: lane for lane in self._lanes}
        self._heard_at = monotonic()
        self._at: list[int] | None = None
        """Where the next round goes on; None before the first, and after one that failed."""
        self._in_a_round = False

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [lane.place for lane in self._lanes]

    def has_changed(self, until: float | None = None) -> bool:
        """Whether the topics have other partitions now. until: by the monotonic clock. Raises TopicsUnreadable."""
        return self._find(until) != self.partitions

    def offsets(self) -> list[tuple[int, int]]:
        """Of each partition the first that there is, and the one after the last committed. Raises TopicsUnreadable."""
        return list(zip(self._ask(_FIRST), self._ask(_END), strict=True))

    def compacted(self) -> list[str]:
        """In words: topics that forget earlier records of a key, or may do so because they do not tell."""
        told = []
        for topic, answer in topic_configs(self._admin, self._topics, ANSWER_SECONDS).items():
            try:
                policy = answer.result(2 * ANSWER_SECONDS)["cleanup.policy"].value or ""
            except (KafkaException, NoAnswer, KeyError) as error:
                told.append(f"whether {topic} is compacted cannot be read ({type(error).__name__})")
                continue
            if "compact" in policy:
                told.append(f"{topic} is compacted, so that earlier records of a key may be gone")
        return told

    def begin_round(self, positions: Sequence[int], until: float | None = None) -> None:
        """What is read next, from these positions on, ends where the topics end now.

        until: when that must be known, by the monotonic clock. Raises TopicsUnreadable.
        """
        if list(positions) != self._at:
            self._go_to(positions)
        for lane, end in zip(self._lanes, self._ask(_END, until), strict=True):
            lane.goal = end
        self._in_a_round, self._heard_at = True, monotonic()

    def read(self, positions: Sequence[int], most: int, most_bytes: int) -> Read:
        """What comes next, at most so much. May be empty before the end is reached.

        positions: offsets, one for each partition. A round begins with the first call, and with the one after it has
        ended. Raises TopicsUnreadable, RecordsGone.
        """
        if list(positions) != self._at or not self._in_a_round:
            self.begin_round(positions)
        self._at = None  # where reading fails, the next round goes back to where it is said to
        records: list[tuple[int, Record]] = []
        until, size = monotonic() + TURN_SECONDS, 0
        while len(records) < most and size < most_bytes:
            left = [(number, lane) for number, lane in enumerate(self._lanes) if not lane.is_done]
            if not left:
                self._in_a_round = False
                break
            if all(lane.waiting for _, lane in left):
                number, lane = min(left, key=lambda each: each[1].waiting[0].timestamp_ms or 0)
                record = lane.take()
                records.append((number, record))
                size += size_of(record)
            elif not self._fetch([lane for _, lane in left], until):
                break
        self._at = reached = [lane.next for lane in self._lanes]
        return Read(records, reached, not self._in_a_round)

    def close(self) -> None:
        bounded.within(LEAVE_SECONDS, self._consumer.close, "kafka-consumer-close")

    def _go_to(self, positions: Sequence[int]) -> None:
        for lane, offset in zip(self._lanes, positions, strict=True):
            lane.begin(offset)
        places = [TopicPartition(*lane.place, lane.next) for lane in self._lanes]
        self._consumer.assign(places)
        self._consumer.resume(places)  # the client keeps a pause with the partition
        self._at = list(positions)

    def _fetch(self, left: Sequence[Lane], until: float) -> bool:
        """Until one of them has more, or false when the time is over."""
        for lane in left:
            if lane.paused and not lane.waiting:
                self._consumer.resume([TopicPartition(*lane.place)])
                lane.paused = False
                lane.doubt()
        first = self._consumer.poll(max(0.0, until - monotonic()))
        messages = [] if first is None else [first, *self._consumer.consume(500, timeout=0)]
        for message in messages:
            self._take(message)
        self._send_back()
        for lane in self._lanes:
            if lane.is_full(self._most, self._most_bytes) and not lane.paused:
                self._consumer.pause([TopicPartition(*lane.place)])
                lane.paused = True
                lane.doubt()
        if messages:
            self._heard_at = monotonic()
        elif monotonic() - self._heard_at > SILENCE_SECONDS:
            raise TopicsUnreadable(self._topics, self._error)
        return monotonic() < until

    def _send_back(self) -> None:
        """Where a gap is to be read once more. What the client has of it in its queue is thrown away by that."""
        for lane in self._lanes:
            if lane.is_to_be_read_again:
                try:
                    self._consumer.seek(TopicPartition(*lane.place, lane.tail))
                except KafkaException as error:  # tried again with the next poll
                    self._on_error(error.args[0])
                else:
                    lane.is_read_again()

    def _take(self, message: Message) -> None:
        lane, error = self._by_place.get((str(message.topic()), message.partition() or 0)), message.error()
        if lane is None:  # of the client or its group, not of what is read
            if error is not None:
                self._on_error(error)
        elif error is None or error.code() == KafkaError._PARTITION_EOF:
            self._put(lane, message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise RecordsGone(*lane.place, lane.tail)
        elif error.fatal() or error.code() in _NEVER_PASSES:
            raise TopicsUnreadable([lane.place[0]], error.name())

    def _put(self, lane: Lane, message: Message) -> None:
        """A record, or the end of the partition."""
        try:
            if message.error() is None:
                lane.add(Record.of(message))
            else:
                lane.has_ended_at(message.offset() or 0)
        except NotToBeHad:
            raise TopicsUnreadable([lane.place[0]], "a gap ends elsewhere each time") from None

    def _find(self, until: float | None = None) -> list[tuple[str, int]]:
        places = []
        for topic in self._topics:
            try:
                found = self._admin.list_topics(topic, timeout=_seconds(until)).topics[topic]
            except KafkaException as error:
                raise TopicsUnreadable([topic], error.args[0].name()) from None
            if found.error is not None:
                raise TopicsUnreadable([topic], found.error.name())
            places += [(topic, number) for number in sorted(found.partitions)]
        return places

    def _ask(self, spec: OffsetSpec, until: float | None = None) -> list[int]:
        """An offset of each partition, as a reader of committed records sees it."""
        asked = {TopicPartition(*lane.place): spec for lane in self._lanes}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_seconds(until)
        )
        try:
            return [answers[place].result(_seconds(until)).offset for place in asked]
        except KafkaException as error:
            raise TopicsUnreadable(self._topics, error.args[0].name()) from None
        except NoAnswer:
            raise TopicsUnreadable(self._topics, "_TIMED_OUT") from None

    def _on_error(self, error: KafkaError) -> None:
        """Nearly all pass by themselves; named when Kafka stays silent."""
        self._error = error.name()


@contextmanager
def reading(settings: Settings, name: str, topics: Sequence[str]) -> Iterator[TopicReader]:
    reader = TopicReader(settings, name, topics)
    try:
        yield reader
    finally:
        reader.close()


def _seconds(until: float | None) -> float:
    """For one answer of the cluster, when it is needed by then."""
    return ANSWER_SECONDS if until is None else min(ANSWER_SECONDS, max(0.1, until - monotonic()))
