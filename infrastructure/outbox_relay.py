"""One turn of a relay: read, map, publish, advance. What waits, retries and reconnects is in relay_loop.py."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from time import monotonic

import psycopg

from infrastructure import checkpoint, metrics
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader, Page, RecordedEvent
from infrastructure.kafka_faults import Fault
from infrastructure.lease import Lease
from infrastructure.outbox import Outbox
from infrastructure.outgoing import Batch, MessageMapper
from infrastructure.postgres import Connection
from infrastructure.publisher import OutgoingMessage, Publisher, PublishFailed
from infrastructure.supervisor import beat

logger = logging.getLogger(__name__)

SET_BACK = "the store was set back: the event that was published last is not there any more"


class Outcome(StrEnum):
    MOVED = "moved"
    """The checkpoint moved; there may be more."""
    IDLE = "idle"
    """Nothing can be published now."""
    REFUSED = "refused"
    """Kafka did not take all; it may later."""
    HELD = "held"
    """What comes next cannot be passed as things are: it needs other code, other settings, or an operator."""
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
    """Publishes what is stored after its checkpoint, in order, for as long as it has the lease.

    Guarantees: the checkpoint covers an event only once Kafka has acknowledged all that it became, and all
    before it. No transaction is open while it waits for Kafka. Nothing is sent once the lease cannot be
    proven. An event that cannot be passed is never skipped: everything before it is published, then it waits.

    Not guaranteed: that a message is published once. A repeat has the same key, value and headers.
    """

    def __init__(self, outbox: Outbox, publisher: Publisher, lease: Lease, position: int, batch_size: int) -> None:
        """position: the one that the lease came with. Call `connect` before the first step."""
        self._outbox, self._publisher, self._lease = outbox, publisher, lease
        self._batch_size = batch_size
        self._careful = False
        self._anchor: bytes | None = None
        self._held: tuple[int, str] | None = None
        self.position = position

    def connect(self, connection: Connection) -> None:
        """Goes on with this connection, in autocommit mode, from the position that is stored.

        Raises LeaseLost when another has taken over meanwhile, and psycopg's errors.
        """
        self._connection = connection
        self._reader = EventReader(connection)
        self._mapper = MessageMapper(self._outbox, self._reader.namespace())
        self._reload()

    def step(self, stop: Event) -> Step:
        """Raises LeaseLost, after which nothing more may be sent, and psycopg's errors, after which to reconnect."""
        self.keep_lease()
        page = self._reader.read(self.position, 1 if self._careful else self._batch_size)
        if self._was_set_back(page):
            return self._wait_for_an_operator()
        if not page.events:
            return Step(Outcome.IDLE, self.position)
        batch = self._mapper.batch(page.events)
        acknowledged, failure = self._publish(batch.messages, stop)
        self._advance(batch.covered(acknowledged))
        step = self._step(batch, acknowledged, failure)
        # After trouble one event at a time until it is over, so that each attempt repeats as little as possible.
        self._careful = step.outcome in (Outcome.REFUSED, Outcome.HELD)
        return step

    def keep_lease(self) -> None:
        """To be called often, whatever it is waiting for: a sign of life, and the lease renewed in time.

        Raises LeaseLost when the lease cannot be proven any more.
        """
        beat(self._lease.relay)
        if monotonic() > self._renew_at:
            self._renew()
        if not self._lease.is_provable:
            raise self._lease.lost()

    def highest_position(self) -> int:
        """Of all that is stored, for the lag."""
        return self._reader.highest_position()

    def release(self) -> None:
        """Lets another relay in at once."""
        self._lease.release(self._connection)

    def _was_set_back(self, page: Page) -> bool:
        """Whether the store was restored from a backup, or lost its tail in a failover: it would use positions
        again that the checkpoint covers, and so the new events there would be skipped."""
        if self._anchor is None:
            return not page.events and page.settled and self.position > self._reader.highest_position()
        return page.anchor is None or fingerprint(page.anchor) != self._anchor

    def _wait_for_an_operator(self) -> Step:
        """It stays an alarm until the checkpoint is put right."""
        self._say_held(self.position, SET_BACK)
        self._reload()
        return Step(Outcome.HELD, self.position, reason=SET_BACK)

    def _reload(self) -> None:
        """The checkpoint as it is stored."""
        self.position = self._renew()
        self._anchor = checkpoint.read_anchor(self._connection, self._lease.relay)

    def _publish(self, messages: Sequence[OutgoingMessage], stop: Event) -> tuple[int, PublishFailed | None]:
        if not messages:
            return 0, None
        try:
            acknowledged, failure = self._publisher.publish(messages, stop, self.keep_lease), None
        except PublishFailed as error:
            acknowledged, failure = error.acknowledged, error
        for topic, count in Counter(message.topic for message in messages[:acknowledged]).items():
            metrics.RELAY_PUBLISHED.labels(self._lease.relay, topic).inc(count)
        return acknowledged, failure

    def _advance(self, to: RecordedEvent | None) -> None:
        if to is None:
            return
        anchor = fingerprint(to)
        try:
            checkpoint.advance(self._connection, self._lease, self.position, to.position, anchor)
        except psycopg.Error:
            metrics.RELAY_CHECKPOINT_FAILURES.labels(self._lease.relay).inc()
            raise
        self.position, self._anchor = to.position, anchor
        self._renewed()

    def _step(self, batch: Batch, acknowledged: int, failure: PublishFailed | None) -> Step:
        if failure and failure.fault is Fault.MESSAGE and failure.index == acknowledged:
            return self._hold(batch.messages[acknowledged].position, f"Kafka refuses it: {failure.error}", acknowledged)
        if failure:
            return Step(Outcome.REFUSED, self.position, acknowledged, failure.error, failure.fault)
        if acknowledged < len(batch.messages):
            return Step(Outcome.STOPPED, self.position, acknowledged)
        if batch.unmappable:
            return self._hold(batch.unmappable.position, batch.unmappable.problem, acknowledged)
        self._held = None
        return Step(Outcome.MOVED, self.position, acknowledged)

    def _hold(self, position: int, reason: str, published: int) -> Step:
        checkpoint.hold(self._connection, self._lease, position, reason)
        self._renewed()
        self._say_held(position, reason)
        return Step(Outcome.HELD, self.position, published, reason)

    def _say_held(self, position: int, reason: str) -> None:
        if self._held != (position, reason):
            self._held = (position, reason)
            fields = {"relay": self._lease.relay, "position": position, "reason": reason}
            logger.error("the relay cannot pass an event", extra=fields)

    def _renew(self) -> int:
        position = self._lease.renew(self._connection)
        self._renewed()
        return position

    def _renewed(self) -> None:
        self._renew_at = monotonic() + self._lease.seconds / 3
