"""One turn of a relay's shard: read, map, publish, advance. What waits, retries and reconnects is in relay_shard.py."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from time import monotonic

import psycopg

from infrastructure import checkpoint, metrics, outgoing_quarantine
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.kafka_faults import Fault
from infrastructure.lease import Lease
from infrastructure.outbox import Outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.outgoing_quarantine import Kind, Parked
from infrastructure.parking import Parking
from infrastructure.postgres import Connection
from infrastructure.publisher import Mark, OutgoingMessage, Publisher, PublishFailed, Sending
from infrastructure.redrive import Redriver
from infrastructure.relay_batch import Batch, Preparer, SetBack
from infrastructure.supervisor import beat

logger = logging.getLogger(__name__)

SET_BACK = "the store was set back: the event that was published last is not there any more"


_NOW_AND_THEN = 1.0
"""Seconds between two writes of the checkpoint while nothing comes but events of other shards."""


class Outcome(StrEnum):
    MOVED = "moved"
    """The checkpoint moved; there may be more."""
    IDLE = "idle"
    """Nothing can be published now."""
    REFUSED = "refused"
    """Kafka did not take all; it may later."""
    HELD = "held"
    """The store was set back: it needs an operator."""
    STOPPED = "stopped"


@dataclass(frozen=True)
class Step:
    """position: up to which all is published. published: messages acknowledged in this step.

    reason: why it was refused or is held; no payload. fault: whose it was when it was refused.
    """

    outcome: Outcome
    position: int
    published: int = 0
    reason: str | None = None
    fault: Fault | None = None


class Relay:
    """Publishes what is stored after its checkpoint, in order, for as long as it has the lease of a shard.

    While a batch is under way to Kafka the next one is read and mapped, and no more than that: so a slow
    Kafka slows the reading, and two batches are in memory. The next one is sent when the checkpoint covers
    the last one, so a crash repeats no more than one.

    Guarantees: the checkpoint covers an event only once Kafka has acknowledged all that it became, and all
    before it. No transaction is open while it waits for Kafka. Nothing is sent once the lease cannot be
    proven. An event that cannot be published is written down in the quarantine, with all later ones of its
    aggregate, before anything that comes behind it is sent; those of other aggregates go on.

    Not guaranteed: that a message is published once. A repeat has the same key, value and headers.
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: Publisher,
        lease: Lease,
        position: int,
        batch_size: int,
        batch_bytes: int = 16_000_000,
    ) -> None:
        """position: the one that the lease came with. Call `connect` before the first step."""
        self._outbox, self._publisher, self._lease = outbox, publisher, lease
        self._batch_size, self._batch_bytes = batch_size, batch_bytes
        self._most = batch_size
        self._resumed = self._redrove = False
        self._prepared: Batch | SetBack | None = None
        self._anchor: bytes | None = None
        self._held_at: int | None = None
        self.shard = lease.shard
        self.loop = f"{lease.relay}/{lease.shard.number}"
        self.position = self._written = position
        self._written_at = float("-inf")

    def connect(self, connection: Connection) -> None:
        """Goes on with this connection, in autocommit mode, from the position that is stored.

        Raises LeaseLost when another has taken over meanwhile, and psycopg's errors.
        """
        self._connection = connection
        self._reader = EventReader(connection)
        self._parking = Parking(self.shard, MessageMapper(self._outbox, self._reader.namespace()))
        self._redriver = Redriver(self._lease, self._parking, self._batch_size, self._batch_bytes)
        self._preparer = Preparer(
            self._reader, self._parking, self.shard, self._batch_size, self._batch_bytes, self.keep_lease
        )
        self._reload()

    def step(self, stop: Event) -> Step:
        """Raises LeaseLost, after which nothing more may be sent, and psycopg's errors, after which to reconnect."""
        self.keep_lease()
        try:
            resumed = self._resume()
        except PublishFailed as error:
            return self._refused(0, error)
        if not resumed:  # nothing may be published: it would take the place of what Kafka was told
            return self._wait_for_an_operator()
        if redriven := self._redrive(stop):
            return redriven
        batch, self._prepared = self._prepared or self._prepare(self._mark), None
        if isinstance(batch, SetBack):
            return self._wait_for_an_operator()
        self._held_at = None
        if batch.is_empty:
            self._write(_NOW_AND_THEN)
            return Step(Outcome.IDLE, self.position)
        self._park(batch.parked)
        acknowledged, failure = self._publish(batch, stop)
        self._advance(batch.covered(acknowledged), 0.0 if batch.concerns_the_shard else _NOW_AND_THEN)
        # After trouble one event, then two, four: so that each attempt repeats little, however much is refused.
        if failure:
            self._most = 1
        elif batch.messages:
            self._most = min(self._batch_size, 2 * self._most)
        return self._outcome(batch, acknowledged, failure)

    def keep_lease(self) -> None:
        """To be called often, whatever it is waiting for: a sign of life, and the lease renewed in time.

        Raises LeaseLost when the lease cannot be proven any more.
        """
        beat(self.loop)
        if monotonic() > self._renew_at:
            self._renew()
        if not self._lease.is_provable:
            raise self._lease.lost()

    def highest_position(self) -> int:
        """Of all that is stored, for the lag."""
        return self._reader.highest_position()

    def release(self) -> None:
        """Lets another relay in at once."""
        self._write()
        self._lease.release(self._connection)

    # --- Where it stands -------------------------------------------------------------------------------

    @property
    def _mark(self) -> Mark:
        return Mark(self.position, self._lease.generation, self._anchor)

    def _reload(self) -> None:
        """The checkpoint as it is stored. What was prepared from another one is forgotten."""
        self.position = self._written = self._renew()
        self._anchor = checkpoint.read_anchor(self._connection, self.shard)
        self._parking.load(self._connection, self.position, self.keep_lease)
        self._forget()

    def _forget(self) -> None:
        """After trouble: nothing is prepared, and the publisher says first what it has for certain."""
        self._prepared = None
        self._resumed = False

    def _resume(self) -> bool:
        """Asks the publisher after a start and after trouble. Kafka may know better than the row, which is written
        later: then the row is brought up to it. False when the store does not have what Kafka has been told."""
        if self._resumed:
            return True
        found = self._publisher.resume(self._mark, self.keep_lease)
        if found.position > self.position:
            last = self._reader.read(found.position, 1).anchor
            if last is None or found.anchor not in (None, fingerprint(last)):
                return False
            self._advance(last)
        self._resumed = True
        return True

    def _advance(self, to: RecordedEvent | None, after: float = 0.0) -> None:
        """after: seconds that the row may stay behind. What lies between is other shards', and will be read again."""
        if to is not None:
            self.position, self._anchor = to.position, fingerprint(to)
            self._write(after)

    def _write(self, after: float = 0.0) -> None:
        if self.position == self._written or monotonic() < self._written_at + after:
            return
        try:
            checkpoint.advance(self._connection, self._lease, self._written, self.position, self._anchor)
        except psycopg.Error:
            metrics.RELAY_CHECKPOINT_FAILURES.labels(self._lease.relay).inc()
            raise
        self._written, self._written_at = self.position, monotonic()
        self._renewed()

    def _renew(self) -> int:
        position = self._lease.renew(self._connection)
        self._renewed()
        return position

    def _renewed(self) -> None:
        self._renew_at = monotonic() + self._lease.seconds / 3

    # --- What goes out ---------------------------------------------------------------------------------

    def _prepare(self, after: Mark) -> Batch | SetBack:
        return self._preparer.batch(after.position, after.anchor, self._most)

    def _publish(self, batch: Batch, stop: Event) -> tuple[int, PublishFailed | None]:
        if not batch.messages:
            return 0, None
        last = batch.events[-1]
        covers = Mark(last.position, self._lease.generation, fingerprint(last))
        sending = self._publisher.send(batch.messages, covers, self.keep_lease)
        try:
            self._prefetch(batch, covers, stop)
        except BaseException:
            sending.drop()
            raise
        return self._wait_for(sending, batch.messages, stop)

    def _wait_for(
        self, sending: Sending, messages: Sequence[OutgoingMessage], stop: Event
    ) -> tuple[int, PublishFailed | None]:
        try:
            acknowledged, failure = sending.wait(stop, self.keep_lease), None
        except PublishFailed as error:
            acknowledged, failure = error.acknowledged, error
            self._forget()
        for topic, count in Counter(message.topic for message in messages[:acknowledged]).items():
            metrics.RELAY_PUBLISHED.labels(self._lease.relay, topic).inc(count)
        return acknowledged, failure

    def _prefetch(self, batch: Batch, covers: Mark, stop: Event) -> None:
        """What comes behind this batch, if it will be sent at all: not after trouble."""
        if batch.full and self._most == self._batch_size and not stop.is_set():
            following = self._prepare(covers)
            self._prepared = following if isinstance(following, Batch) and not following.is_empty else None

    # --- What does not go out ----------------------------------------------------------------------------

    def _park(self, parked: Sequence[Parked]) -> None:
        new = outgoing_quarantine.park(self._connection, self._lease, parked)
        self._parking.parked(parked, new)
        for each in new:
            if each.kind is Kind.CULPRIT:
                fields = {"relay": self._lease.relay, "shard": self.shard.number, "position": each.event.position}
                about = {"category": str(each.category), "reason": each.problem}
                logger.error("an event cannot be published and is in quarantine", extra=fields | about)

    def _redrive(self, stop: Event) -> Step | None:
        """What somebody has asked for, in turn with the batches, so that neither makes the other wait."""
        if self._redrove:
            self._redrove = False
            return None
        asked = self._redriver.asked(self._connection, self.position)
        if not asked:
            return None
        self._redrove = True
        # Sorted before this: an aggregate that is not parked any more would overtake itself. And it is memory.
        self._prepared = None
        redriven = self._redriver.turn(
            self._connection, self.position, asked, lambda messages: self._publish_parked(messages, stop)
        )
        if redriven.failure:
            return self._refused(redriven.published, redriven.failure)
        if redriven.stopped:
            return self._stopped(redriven.published)
        return Step(Outcome.MOVED, self.position, redriven.published)

    def _publish_parked(self, messages: Sequence[OutgoingMessage], stop: Event) -> tuple[int, PublishFailed | None]:
        return self._wait_for(self._publisher.send(messages, self._mark, self.keep_lease), messages, stop)

    # --- What came of it -------------------------------------------------------------------------------

    def _outcome(self, batch: Batch, acknowledged: int, failure: PublishFailed | None) -> Step:
        if failure and failure.fault is Fault.MESSAGE and failure.index is not None:
            self._parking.refuse(batch.messages[failure.index].position, failure.error)
        elif failure:
            return self._refused(acknowledged, failure)
        elif acknowledged < len(batch.messages):
            return self._stopped(acknowledged)
        return Step(Outcome.MOVED, self.position, acknowledged)

    def _refused(self, acknowledged: int, failure: PublishFailed) -> Step:
        self._forget()
        return Step(Outcome.REFUSED, self.position, acknowledged, failure.error, failure.fault)

    def _stopped(self, acknowledged: int) -> Step:
        self._forget()
        return Step(Outcome.STOPPED, self.position, acknowledged)

    def _wait_for_an_operator(self) -> Step:
        """It stays an alarm until the checkpoint is put right."""
        if self._held_at != self.position:
            self._held_at = self.position
            fields = {"relay": self._lease.relay, "shard": self.shard.number, "position": self.position}
            logger.error("the relay is held: the store was set back", extra=fields)
        self._reload()
        return Step(Outcome.HELD, self.position, reason=SET_BACK)
