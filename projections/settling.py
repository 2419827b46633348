"""Settles a batch by whatever it takes: apply it, split it, try an event again, put it in quarantine."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import monotonic

from infrastructure import metrics
from infrastructure.backoff import Backoff
from infrastructure.logs import error_fields
from infrastructure.postgres import cause_of
from infrastructure.record import Record
from infrastructure.subscriber import Subscriber
from infrastructure.supervisor import beat
from projections.applying import is_pipelined
from projections.base import BatchProjection, Projection
from projections.batch import Batch, Limits, Outcome, Readable, apply_batch
from projections.database import Database
from projections.decoding import Category
from projections.faults import Fault, HandlerWaits, StopAsked, TooSlow, fault_of, is_no_event_at_fault
from projections.quarantine import Parked
from projections.splitting import Failure, split

logger = logging.getLogger(__name__)

LONGEST_BATCH = 10.0
"""Seconds after which a batch is given up when its next event is due; never before its first, so that an event
that is slow all by itself gets through. Together with the one event that may be under way, whose statements
have limits of their own, this stays far below the time after which Kafka takes a silent consumer for dead.
A BatchProjection has all its events under way at once: a batch of its that took longer is followed by smaller ones."""


@dataclass(frozen=True)
class Settler:
    projection: Projection
    database: Database
    subscriber: Subscriber
    stop: Event
    attempts: int
    longest: float = LONGEST_BATCH
    limits: Limits = field(default_factory=Limits)
    meanwhile: Callable[[], None] | None = None
    """Called while PostgreSQL claims the ids of a batch; must not raise."""
    waiting: set[tuple[str, int]] = field(default_factory=set)
    """Topic and number of the partitions for whose next record the quarantine has no room, or whose next event its
    handler cannot apply yet."""

    def settle(self, batch: Batch, attempt: int = 1) -> None:
        """Afterwards every record is applied, known as a repeat, or in quarantine, and is finished; except those that
        the quarantine has no room for or that must wait, and what follows them in their partitions, which are
        `waiting` then.

        A batch that fails is split until the event at fault stands alone; that one is tried `attempts`
        times, or once where no attempt can help, then parked. The earlier part is settled first, so that
        the later events of a key find what is parked of it. Raises StopAsked, TooSlow, and any error that
        no event is at fault for, with everything up to some record finished and nothing done of the rest;
        also what keeps a record from being parked.
        """
        parts: list[Batch] = [batch]
        while parts:
            parts += reversed(self._settle_or_split(parts.pop(), attempt))

    def _settle_or_split(self, batch: Batch, attempt: int) -> list[Batch]:
        """The parts that are left to be settled, in their order."""
        beat(self.projection.consumer_name)
        self.subscriber.keep_alive()
        batch = [each for each in batch if (each.record.topic, each.record.partition) not in self.waiting]
        failure = self._apply(batch) if batch else None
        if failure is None:
            return []
        if len(batch) > 1:
            return split(batch, failure)
        (culprit,) = batch
        if isinstance(culprit, Parked):
            raise failure.error
        if isinstance(failure.error, HandlerWaits):
            self._let_wait(culprit, failure.error)
            return []
        self._tell_of_failure(culprit, attempt, failure.error)
        if attempt < self.attempts and fault_of(failure.error) is not Fault.EVENT:
            self.subscriber.idle(self.stop, Backoff(base=0.1 * 2**attempt, cap=5.0).next_delay())
            self.settle(batch, attempt + 1)
        else:
            reason = f"handling failed {attempt} times, at last with {cause_of(failure.error)}"
            self.settle([culprit.parked(Category.HANDLER, reason)])
        return []

    def _apply(self, batch: Batch) -> Failure | None:
        """None when the batch is committed, else what one of its events is at fault for, or waits for."""
        started, last = monotonic(), None

        def before_each(event: Readable) -> None:
            nonlocal last
            self._end_if_asked()
            if last is not None and monotonic() - started > self.longest:
                raise TooSlow
            last = event

        def after_all() -> None:
            nonlocal last
            last = None

        self._end_if_asked()
        try:
            connection = self.database.connection()
            outcome = apply_batch(
                batch, self.projection, connection, before_each, self.limits, after_all, self.meanwhile
            )
        except Exception as error:
            if is_no_event_at_fault(error) and not isinstance(error, HandlerWaits):
                raise
            together = isinstance(self.projection, BatchProjection)
            return Failure(error, None if together else last, is_pipelined(self.projection, len(batch)))
        self._let_wait_for_room(outcome.waiting)
        waiting = set(map(id, outcome.waiting))
        self.subscriber.finish(each.record for each in batch if id(each.record) not in waiting)
        metrics.INBOX_BATCH_SECONDS.labels(self.projection.consumer_name).observe(monotonic() - started)
        self._tell(outcome)
        return None

    def _let_wait_for_room(self, records: Sequence[Record]) -> None:
        partitions = {(record.topic, record.partition) for record in records}
        self.waiting.update(partitions)
        if partitions:
            about = {"consumer": self.projection.consumer_name, "partitions": sorted(f"{t}/{n}" for t, n in partitions)}
            logger.error("the quarantine is full: partitions wait", extra=about)

    def _let_wait(self, event: Readable, failure: HandlerWaits) -> None:
        self.waiting.add((event.record.topic, event.record.partition))
        metrics.INBOX_RETRIES.labels(self.projection.consumer_name, cause_of(failure)).inc()
        about = self._about(event.record, event.contract.event_id) | {"reason": failure.reason}
        logger.warning("the handler waits, and its partition with it", extra=about)

    def _end_if_asked(self) -> None:
        if self.stop.is_set():
            raise StopAsked

    def _tell(self, outcome: Outcome) -> None:
        name = self.projection.consumer_name
        metrics.INBOX_EVENTS.labels(name, "applied").inc(outcome.applied)
        metrics.INBOX_EVENTS.labels(name, "duplicate").inc(outcome.duplicates)
        metrics.INBOX_EVENTS.labels(name, "quarantined").inc(len(outcome.parked))
        for record, fault in outcome.parked:
            metrics.QUARANTINED.labels(name, fault.category.value).inc()
            about = self._about(record, fault.event_id) | {"category": fault.category.value}
            followers = fault.category is Category.FOLLOWER
            logger.log(logging.INFO if followers else logging.WARNING, "put in quarantine", extra=about)

    def _tell_of_failure(self, culprit: Readable, attempt: int, failure: Exception) -> None:
        metrics.INBOX_RETRIES.labels(self.projection.consumer_name, cause_of(failure)).inc()
        about = self._about(culprit.record, culprit.contract.event_id) | {"attempt": attempt} | error_fields(failure)
        logger.warning("handling failed", extra=about)

    def _about(self, record: Record, event_id: str | None) -> dict[str, object]:
        return {
            "consumer": self.projection.consumer_name,
            "event_id": event_id,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
        }
