"""Records from Kafka, at least once, in order per partition; offsets are committed by hand, after the work.

All calls belong to one thread, in which Kafka's client also calls back when partitions come and go. The client
serves one call at a time, so nothing that may wait for a broker without end is called; leaving the group, the
last call of all, is left to a thread of its own and waited for only so long.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, Message, TopicPartition

from domain.errors import CounterfoilError
from infrastructure import bounded, metrics
from infrastructure.committer import Committer
from infrastructure.deleted_records import tell_of_deleted_records
from infrastructure.kafka_config import connection_config
from infrastructure.progress import NOT_TAKEN, Came, Progress
from infrastructure.record import Record
from infrastructure.rereading import Rereading
from infrastructure.settings import Settings
from infrastructure.starts import known_starts

logger = logging.getLogger(__name__)
_silent = logging.getLogger(f"{__name__}.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
"""The client's own log: whatever matters reaches us as an error, and is logged here by its name."""

MAX_POLL_INTERVAL = 300.0
"""Seconds. A consumer that does not poll for so long is taken for dead and loses its partitions."""
COMMIT_SECONDS = 2.0
"""Longest wait for a commit."""
LEAVE_SECONDS = 2.0
"""Longest wait for leaving the group."""
_TURN = 0.1
"""Seconds between two looks at the stop event."""
_SHORT_TURN = 0.005
"""Seconds of a poll that is there for an answer: it does not end early when the answer comes."""
_KEEP_ALIVE = MAX_POLL_INTERVAL / 10


@dataclass(eq=False)
class SubscriberFailed(CounterfoilError):
    """The Kafka client has given up for good, or can't be relied on any longer.

    error: the client's name of the reason, or one of ours: `gap_not_proved` (each time that a gap was read, it
    ended at another record), `seek_refused` (a partition could not be read again for 30 seconds).

    What to do: close the subscriber and make a new one. What was not committed is delivered again.
    """

    error: str

    def __str__(self) -> str:
        return f"Kafka's client can't go on ({self.error}). Close this subscriber and make a new one."


def consumer_config(settings: Settings, group: str) -> dict[str, Any]:
    """Holds the password: never log it."""
    return (
        connection_config(settings)
        | _membership(settings)
        | {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # `latest` would lose what came while the group's offsets were gone
            "isolation.level": "read_committed",
            "max.poll.interval.ms": round(MAX_POLL_INTERVAL * 1000),
            "allow.auto.create.topics": False,  # a misspelt topic must not come to life
            "topic.metadata.refresh.interval.ms": 5_000,  # how long a topic that is just being made stays unseen
            "log_level": 0,
        }
    )


def _membership(settings: Settings) -> dict[str, Any]:
    name = {"group.instance.id": settings.group_instance_id} if settings.group_instance_id else {}
    if settings.group_protocol == "consumer":
        return name | {"group.protocol": "consumer"}  # what else there was to say of it, the broker says
    return name | {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": round(settings.session_timeout * 1000),
        "heartbeat.interval.ms": round(min(settings.session_timeout / 3, 3) * 1000),
    }


class Subscriber:
    """A member of a consumer group. Use it in a `with` block.

    Guarantees: an offset is committed only when every record before it was finished; a partition that
    was taken away has its finished records committed first, if there is time to; for a partition that
    was lost nothing more is committed. A record may be delivered again at any time.

    Order: from when a partition becomes ours until it is taken away, none of its records comes before one that
    precedes it. It begins with the first record at or after the committed offset, or with the oldest where the
    group has committed none. What the client brings is not just passed on: a gap is read once more before what
    follows it is delivered (see Progress), so a record that comes too early cannot overtake those before it,
    whether the client has skipped them or still brings what it had before a rebalance or a pause. Without that are
    believed: gaps no wider than one that was proved in this partition since the last rebalance or pause (where a gap
    that begins with deleted records proves nothing), and, where the broker does not tell the committed offset, not
    even after the first record came, that record. A gap that can't be proved is never passed: see SubscriberFailed.
    """

    def __init__(
        self, settings: Settings, group: str, topics: Sequence[str], changes: Mapping[str, Any] | None = None
    ) -> None:
        """changes: to the consumer's configuration."""
        self._group = group
        self._partitions: dict[tuple[str, int], Progress] = {}
        self._waiting: list[Record] = []
        self._held: dict[tuple[str, int], float] = {}
        """Partitions that are held, and until when."""
        self._paused = False
        self._closed = False
        self._fatal: str | None = None
        self._troubles: set[str] = set()
        self._polled_at = monotonic()
        self._rereading = Rereading(group, self._on_error)
        self._committer = Committer(self._partitions, self._on_error)
        calls_back = {"error_cb": self._on_error, "on_commit": self._committer.answered}
        config = consumer_config(settings, group) | dict(changes or {}) | calls_back
        self._consumer = Consumer(config, logger=_silent)
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, most: int, wait: float) -> list[Record]:
        """What there is: at most `most` records, none when there were none for `wait` seconds.

        Each one is unfinished until `finish`. Records that were rewound come first. A topic that is
        missing, or a broker that is away, means no records. As many more as have arrived are taken over beforehand,
        see `coming`. Raises SubscriberFailed.
        """
        self._let_go()
        if (room := 2 * most - len(self._waiting)) > 0:
            self._fetch(room, 0.0 if self._waiting else wait)
        records, self._waiting = self._waiting[:most], self._waiting[most:]
        if not records:
            self._committer.send_again(self._consumer)
        return records

    def coming(self, most: int) -> list[Record]:
        """What the next poll would bring, of what is here: it may be something else by then."""
        return self._waiting[:most]

    def finish(self, records: Iterable[Record]) -> None:
        """They are done with. Those of a partition that was taken away meanwhile are no longer ours to finish."""
        for record in records:
            progress = self._partitions.get((record.topic, record.partition))
            if progress is not None:
                progress.finish(record)

    def commit(self, wait: float = COMMIT_SECONDS) -> bool:
        """Commits what is finished. False when that was not confirmed within so many seconds: the answer may still
        come, and what fails is tried again later, both while there are polls."""
        until = monotonic() + (0.0 if self._committer.is_under_way else wait)
        self._committer.send(self._consumer)
        while self._committer.is_under_way and monotonic() < until:
            self._fetch(1, _SHORT_TURN)
        return self._committer.is_complete

    def rewind(self) -> None:
        """All records that are not finished come again, those of held partitions later."""
        free = self._partitions.keys() - self._held.keys()
        self._waiting = [record for place in self._partitions if place in free for record in self._unfinished(place)]

    def hold(self, partitions: Iterable[tuple[str, int]], seconds: float) -> None:
        """Nothing comes of these for so long, by topic and number; then what is not finished comes again."""
        held = self._partitions.keys() & set(partitions)
        self._held |= dict.fromkeys(held, monotonic() + seconds)
        self._waiting = [record for record in self._waiting if (record.topic, record.partition) not in held]
        self._pause(held)
        metrics.SUBSCRIBER_HELD.labels(self._group).set(len(self._held))

    def idle(self, stop: Event, seconds: float) -> None:
        """Waits, and stays a live member of the group meanwhile; over at once when told to stop."""
        until = monotonic() + seconds
        self.pause()
        try:
            while not stop.is_set() and (left := until - monotonic()) > 0:
                self._fetch(1, min(left, _TURN))
        finally:
            self.resume()

    def keep_alive(self) -> None:
        """To be called now and then during long work; polls when that has become due, without new records."""
        if monotonic() - self._polled_at > _KEEP_ALIVE:
            self.pause()
            try:
                self._fetch(1, 0)
            finally:
                self.resume()

    def pause(self) -> None:
        """Polling brings no new records until `resume`, also of partitions that come meanwhile."""
        self._paused = True
        self._pause(self._partitions)

    def resume(self) -> None:
        self._paused = False
        self._resume(self._partitions.keys() - self._held.keys())

    def close(self) -> None:
        """Commits what is finished and leaves the group, so that others take over at once; a few seconds at most."""
        if self._closed:
            return
        self._closed = True
        with suppress(SubscriberFailed):
            self.commit()
        if not bounded.within(LEAVE_SECONDS, self._consumer.close, "kafka-consumer-close"):
            logger.warning("left without the broker's confirmation", extra={"group": self._group})

    # --- What comes -----------------------------------------------------------------------------------

    def _fetch(self, most: int, wait: float) -> None:
        """Waits only for the first record, then takes what has arrived: so no record waits for a batch to fill."""
        self._polled_at = monotonic()
        first = self._consumer.poll(wait)
        if first is not None:
            self._take(first)  # before anything else is called: partitions may come and go then
            for message in self._consumer.consume(most - 1, timeout=0) if most > 1 else ():
                self._take(message)
        if self._rereading:
            self._read_again()
        if self._fatal:
            raise SubscriberFailed(self._fatal)

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            self._on_error(error)
            return
        record = Record.of(message)
        progress = self._partitions.get((record.topic, record.partition))
        if progress is None:
            return  # taken away after it had arrived here: it is another member's now
        expected = progress.next
        if expected is None:  # the broker did not tell; nothing was committed by us meanwhile, so it is not too late
            place = record.topic, record.partition
            expected = known_starts(self._consumer, [TopicPartition(*place)]).get(place)
            progress.starts_at(expected)
        came = progress.add(record)
        if came is not Came.IN_ORDER and expected is not None:
            self._note(came, expected, record)
            if came in NOT_TAKEN:
                return
        if (record.topic, record.partition) not in self._held:
            self._waiting.append(record)
        self._troubles.clear()

    def _note(self, came: Came, expected: int, record: Record) -> None:
        """expected: the offset at which the record was to come, or after which."""
        place = record.topic, record.partition
        if came is Came.TOO_EARLY:
            self._rereading.ask_for(place, expected)  # counted there
            return
        metrics.SUBSCRIBER_OUT_OF_LINE.labels(self._group, came.name.lower()).inc()
        about = {"group": self._group, "topic": record.topic, "partition": record.partition, "offset": record.offset}
        match came:
            case Came.AFTER_PROVED_GAP:
                if tell_of_deleted_records(self._consumer, self._group, expected, record):
                    self._partitions[place].trust_gaps(record.offset - expected)
            case Came.UNPROVED:
                self._fatal = "gap_not_proved"
                about |= {"first_missing": expected, "last_missing": record.offset - 1}
                logger.error("a gap ended at another record each time it was read: a new client is needed", extra=about)
            case Came.FOUND:
                logger.warning("Kafka's client had left out records: they were read once more", extra=about)
            case Came.AGAIN:
                logger.info("Kafka's client has gone back", extra=about | {"expected": expected})

    def _read_again(self) -> None:
        for place in self._rereading.send_back(self._consumer):
            self._partitions[place].is_read_again()
        if self._rereading.is_stuck:
            self._fatal = "seek_refused"

    def _let_go(self) -> None:
        due = [place for place, until in self._held.items() if until <= monotonic()]
        for place in due:
            del self._held[place]
            self._waiting += self._unfinished(place)
        if due:
            metrics.SUBSCRIBER_HELD.labels(self._group).set(len(self._held))
        if due and not self._paused:
            self._resume(due)

    def _unfinished(self, place: tuple[str, int]) -> list[Record]:
        return self._partitions[place].unfinished

    def _on_error(self, error: KafkaError) -> None:
        """Nearly all pass by themselves and repeat until then: counted each time, logged once."""
        metrics.SUBSCRIBER_TROUBLES.labels(self._group, error.name()).inc()
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error.name()
        if error.name() not in self._troubles:
            self._troubles.add(error.name())
            logger.warning("trouble with Kafka", extra={"group": self._group, "error": error.name()})

    # --- Partitions come and go -----------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Where reading begins is said here, so that the client and we can't be of two minds about it."""
        starts = known_starts(consumer, partitions)
        places = [(each.topic, each.partition) for each in partitions]
        consumer.incremental_assign([TopicPartition(*place, starts.get(place, OFFSET_STORED)) for place in places])
        self._doubt()
        self._partitions |= {place: Progress(starts.get(place)) for place in places}
        if self._paused:
            self._pause(places)
        self._tell("partitions assigned", partitions)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._doubt()
        self._committer.send_before_leaving(self._consumer, self._forget(partitions))
        self._tell("partitions revoked", partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Others have them already, and perhaps have come further."""
        self._doubt()
        self._forget(partitions)
        self._tell("partitions lost", partitions)

    def _forget(self, partitions: list[TopicPartition]) -> dict[tuple[str, int], Progress]:
        gone = {(each.topic, each.partition) for each in partitions} & self._partitions.keys()
        if still := gone if self._paused else gone & self._held.keys():
            # The client keeps a pause with the partition, for when it is ours again. To resume it only then might
            # cross the client's own beginning.
            self._consumer.resume([TopicPartition(*place) for place in still])
        self._waiting = [record for record in self._waiting if (record.topic, record.partition) not in gone]
        self._held = {place: until for place, until in self._held.items() if place not in gone}
        self._rereading.forget(gone)
        metrics.SUBSCRIBER_HELD.labels(self._group).set(len(self._held))
        return {each: self._partitions.pop(each) for each in gone}

    def _pause(self, places: Iterable[tuple[str, int]]) -> None:
        self._consumer.pause([TopicPartition(*place) for place in places])
        self._doubt(places)

    def _resume(self, places: Iterable[tuple[str, int]]) -> None:
        self._consumer.resume([TopicPartition(*place) for place in places])
        self._doubt(places)

    def _doubt(self, places: Iterable[tuple[str, int]] | None = None) -> None:
        """All of them when partitions come or go: the client pauses them all meanwhile, and throws away its queue."""
        for place in self._partitions if places is None else places:
            self._partitions[place].doubt()

    def _tell(self, what: str, partitions: list[TopicPartition]) -> None:
        metrics.SUBSCRIBER_PARTITIONS.labels(self._group).set(len(self._partitions))
        names = [f"{each.topic}/{each.partition}" for each in partitions]
        logger.info(what, extra={"group": self._group, "partitions": names, "now": len(self._partitions)})
