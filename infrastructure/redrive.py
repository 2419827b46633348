"""A relay's turn at the parked events for which somebody has asked: in order, and before anything newer of theirs."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic

from infrastructure import metrics
from infrastructure.kafka_faults import Fault
from infrastructure.lease import Lease
from infrastructure.outgoing_quarantine import Category, discarded_after
from infrastructure.outgoing_redrives import FailedAgain, ParkedEvent, asked_for, next_parked, settle
from infrastructure.parking import Parking
from infrastructure.postgres import Connection
from infrastructure.publisher import OutgoingMessage, PublishFailed

logger = logging.getLogger(__name__)

Publish = Callable[[Sequence[OutgoingMessage]], tuple[int, PublishFailed | None]]
"""Publishes and waits: how many of the first messages are acknowledged, and why not all."""

_EVERY = 1.0
"""Seconds between two looks at what was asked for."""
_AGGREGATES = 500
"""At one turn, at most; each may have many events, of which a turn takes one batch."""


@dataclass(frozen=True)
class Redriven:
    """published: acknowledged messages. failure: why Kafka did not take all, where no event is at fault.

    stopped: whether it was told to stop before Kafka had taken all.
    """

    published: int
    failure: PublishFailed | None = None
    stopped: bool = False


@dataclass
class _Attempt:
    """ready: what can be published, with the messages of each. failed: the first of its aggregate that cannot be."""

    ready: list[tuple[ParkedEvent, list[OutgoingMessage]]] = field(default_factory=list)
    failed: list[FailedAgain] = field(default_factory=list)

    @property
    def messages(self) -> list[OutgoingMessage]:
        return [message for _, messages in self.ready for message in messages]

    def published(self, acknowledged: int) -> list[ParkedEvent]:
        """Those of which every message is among the first `acknowledged`."""
        return [each for (each, _), end in zip(self.ready, self._ends(), strict=True) if end <= acknowledged]

    def spare_what_waits(self, released: Sequence[ParkedEvent]) -> None:
        """One has failed only when all before it of its aggregate are released; else its turn is yet to come."""
        done = {each.id for each in released}
        waiting = {each.originator_id for each, _ in self.ready if each.id not in done}
        self.failed = [each for each in self.failed if each.parked.originator_id not in waiting]

    def blame(self, index: int, error: str) -> None:
        """Kafka has refused this message for what it is."""
        parked = next(each for (each, _), end in zip(self.ready, self._ends(), strict=True) if index < end)
        self.failed.append(FailedAgain(parked, Category.REFUSED, f"Kafka refuses it: {error}"))

    def _ends(self) -> list[int]:
        return list(accumulate(len(messages) for _, messages in self.ready))


class Redriver:
    """For one lease. A turn belongs between two batches of the relay, when nothing is under way.

    Guarantees: parked events of an aggregate are published in order, under the ids they always had, and marked
    as released only after the acknowledgement. An aggregate ends at the first event that fails again; it is no
    longer parked when, and only when, nothing of it is left, so that no newer event of its overtakes them.
    They overtake none themselves: an aggregate waits until the relay has passed all that is parked of it.
    A crash in between leads to repeats and to nothing else, whatever delivery was chosen.
    """

    def __init__(self, lease: Lease, parking: Parking, batch_size: int, batch_bytes: int) -> None:
        """batch_size, batch_bytes: events of one turn, at most, and after how many bytes of them it ends."""
        self._lease, self._parking = lease, parking
        self._batch_size, self._batch_bytes = batch_size, batch_bytes
        self._most = batch_size
        self._look_at = 0.0

    def asked(self, connection: Connection, position: int) -> list[str]:
        """Some of the aggregates whose turn it is; none when there is nothing to do. Raises psycopg's errors.

        position: up to which the relay has published or parked all.
        """
        if monotonic() < self._look_at:
            return []
        aggregates = asked_for(connection, self._lease.shard, position, _AGGREGATES)
        if not aggregates:
            self._look_at = monotonic() + _EVERY
        return aggregates

    def turn(self, connection: Connection, position: int, aggregates: Sequence[str], publish: Publish) -> Redriven:
        """One batch of what is parked of these, which were asked for. Raises LeaseLost and psycopg's errors."""
        parked = next_parked(connection, self._lease.relay, aggregates, self._most, self._batch_bytes)
        attempt = self._examine(parked)
        messages = attempt.messages
        acknowledged, failure = publish(messages) if messages else (0, None)
        stopped = failure is None and acknowledged < len(messages)
        # After trouble one event, then two, four: so that whoever is at fault stands alone before long.
        self._most = 1 if failure else min(self._batch_size, 2 * self._most)
        released = attempt.published(acknowledged)
        attempt.spare_what_waits(released)
        if failure and failure.fault is Fault.MESSAGE and failure.index is not None:
            attempt.blame(failure.index, failure.error)
            failure = None
        left = settle(connection, self._lease, aggregates, released, attempt.failed)
        discarded = discarded_after(connection, self._lease.relay, position)
        self._parking.left(aggregates, left, discarded)
        self._tell(released, attempt.failed)
        return Redriven(acknowledged, failure, stopped)

    def _examine(self, parked: Sequence[ParkedEvent]) -> _Attempt:
        attempt, ended = _Attempt(), set()
        for each in parked:
            if each.originator_id in ended:
                continue
            failed = self._problem(each, attempt)
            if failed:
                attempt.failed.append(failed)
                ended.add(each.originator_id)
        return attempt

    def _problem(self, parked: ParkedEvent, attempt: _Attempt) -> FailedAgain | None:
        """None when it is ready to be published."""
        if parked.event is None:
            return FailedAgain(parked, Category.GONE, "the store was set back: another event is stored there, or none")
        messages, problem = self._parking.examine(parked.event)
        if problem:
            return FailedAgain(parked, *problem)
        attempt.ready.append((parked, messages))
        return None

    def _tell(self, released: Sequence[ParkedEvent], failed: Sequence[FailedAgain]) -> None:
        relay = self._lease.relay
        metrics.RELAY_REDRIVEN.labels(relay, "released").inc(len(released))
        metrics.RELAY_REDRIVEN.labels(relay, "failed").inc(len(failed))
        if released or failed:
            logger.info("events redriven", extra={"relay": relay, "released": len(released), "failed": len(failed)})
        for each in failed:
            about = {"relay": relay, "entry": each.parked.id, "category": str(each.category), "problem": each.problem}
            logger.warning("a parked event failed again", extra=about)
