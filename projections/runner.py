"""Feeds a projection from Kafka: poll, read, settle in the database, and only then let the offsets pass."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from threading import Event
from time import monotonic

import psycopg

from infrastructure import metrics
from infrastructure.backoff import Backoff
from infrastructure.hints import NOTIFY_PROJECTED, HintSender
from infrastructure.postgres import cause_of
from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber
from infrastructure.supervisor import beat
from projections import versions
from projections.base import Projection
from projections.batch import Limits, Readable
from projections.database import Database
from projections.decoding import Decoded, Decoder, Faulty, Ignored
from projections.faults import StopAsked, TooSlow, is_no_event_at_fault
from projections.quarantine import Parked
from projections.quarantine_gauge import QuarantineGauge
from projections.reading import Reader
from projections.settling import LONGEST_BATCH, Settler
from projections.versions import OtherVersion

logger = logging.getLogger(__name__)

HOLD_SECONDS = 5.0
"""After which it is looked again whether the quarantine has room, or the handler can go on."""

VERSION_SECONDS = 5.0
"""After which it is looked again whose the tables are."""


class Runner:
    """Runs one projection as a member of the consumer group that has its name; any number may run at once.

    Trouble that no event is at fault for (a database that is away or read-only, a lock that others hold, a
    table that is missing) is waited out: nothing is skipped, no attempt is spent, and Kafka is polled
    meanwhile. What an event is at fault for ends with that event in quarantine and its neighbours applied.
    While the tables belong to code of another version, it waits outside of the group.
    """

    def __init__(
        self, projection: Projection, dsn: str, settings: Settings, longest_batch: float = LONGEST_BATCH
    ) -> None:
        """longest_batch: seconds after which a batch is given up, to be done in smaller parts."""
        self._projection, self._settings, self._longest_batch = projection, settings, longest_batch
        self._name = projection.consumer_name
        self._reader = Reader(Decoder(projection.contracts))
        self._dsn, self._database = dsn, Database(dsn, f"counterfoil project {self._name}")
        self._applied: HintSender | None = None
        self._limits = Limits(settings.quarantine_per_key, settings.quarantine_total)
        self._gauge = QuarantineGauge(self._name)
        self._batch_size = settings.consume_batch_size
        self._backoff = Backoff(base=0.1, cap=5.0)

    def run(self, stop: Event) -> None:
        """Until told to stop; then, within `stop_grace`, the batch is finished or rolled back, the offsets of what
        is committed are committed too, and the group is left.

        Raises what cannot be waited out, such as SubscriberFailed: run it again, after a while.
        """
        patience = self._settings.stop_grace / 2  # the other half is for Kafka
        applied = self._applied = HintSender(self._dsn, NOTIFY_PROJECTED)
        try:
            self._wait_for_our_version(stop)
            if stop.is_set():
                return
            with (
                Subscriber(self._settings, self._name, self._projection.topics) as subscriber,
                self._database.cut_when_late(stop, patience),
            ):
                while not stop.is_set():
                    self.step(subscriber, stop)
        finally:
            self._database.drop()
            applied.close()

    def step(self, subscriber: Subscriber, stop: Event) -> bool:
        """One batch, from poll to committed offset. True when there was one and all of it is settled."""
        beat(self._name)
        self._gauge.refresh(self._database)
        records = subscriber.poll(self._batch_size, self._settings.consume_wait)
        if not records:
            return False
        settled, wait = False, 0.0
        started = monotonic()
        settler = self._settler(subscriber, stop)
        try:
            settler.settle(list(self._read(records, subscriber)))
            settled = True
            if self._applied:
                self._applied.hint()
        except StopAsked:
            logger.info("the batch is rolled back to stop in time", extra={"consumer": self._name})
        except OtherVersion:
            raise
        except TooSlow as error:
            self._do_smaller_batches(len(records), error)
        except Exception as error:
            if not is_no_event_at_fault(error):
                raise
            wait = self._wait_for(error)
            # No reply in time leaves no SQLSTATE either, and may have been for too many statements at once.
            if self._projection.pipelined and isinstance(error, psycopg.Error) and error.sqlstate is None:
                self._batch_size = max(1, len(records) // 2)
        subscriber.commit(wait=0.0)  # the next polls bring the answer
        if settler.waiting:  # in Kafka: they come again by themselves, and the others go on
            subscriber.hold(settler.waiting, HOLD_SECONDS)
        if settled:
            self._went_well(len(records), monotonic() - started)
        else:
            subscriber.rewind()
            subscriber.idle(stop, wait)
        return settled

    def _wait_for_our_version(self, stop: Event) -> None:
        """Outside of the group, so that those who may write share all partitions. Where the database does not tell,
        the first batch will find out."""
        with suppress(psycopg.Error):
            while (live := versions.read(self._database.connection(), self._name)) not in (
                None,
                self._projection.version,
            ):
                beat(self._name)
                about = {"consumer": self._name, "version": self._projection.version, "live_version": live}
                logger.warning("the tables belong to another version of the code", extra=about)
                if stop.wait(VERSION_SECONDS):
                    return

    def _settler(self, subscriber: Subscriber, stop: Event) -> Settler:
        attempts = self._settings.handler_attempts
        longest, limits = self._longest_batch, self._limits

        def meanwhile() -> None:
            self._reader.read_ahead(subscriber.coming(self._batch_size))

        return Settler(self._projection, self._database, subscriber, stop, attempts, longest, limits, meanwhile)

    def _read(self, records: list[Record], subscriber: Subscriber) -> Iterator[Readable | Parked]:
        """What is there to apply or to park. What the projection does not handle is finished with that."""
        for record in records:
            match self._reader.read(record):
                case Decoded(contract):
                    yield Readable(record, contract)
                case Faulty() as fault:
                    yield Parked(record, fault)
                case Ignored():
                    subscriber.finish([record])
                    metrics.INBOX_EVENTS.labels(self._name, "ignored").inc()

    def _went_well(self, records: int, seconds: float) -> None:
        self._backoff.reset()
        if seconds > self._longest_batch:  # handlers of whole batches are not interrupted
            self._batch_size = max(1, records // 2)
        elif seconds < self._longest_batch / 4:
            self._batch_size = min(self._settings.consume_batch_size, self._batch_size * 2)

    def _do_smaller_batches(self, failed: int, error: TooSlow) -> None:
        """failed: how many records the batch had, which may be far fewer than the settings allow."""
        self._batch_size = max(1, failed // 2)
        metrics.INBOX_RETRIES.labels(self._name, cause_of(error)).inc()
        about = {"consumer": self._name, "records": failed, "next": self._batch_size}
        logger.warning("the batch takes too long", extra=about)

    def _wait_for(self, trouble: Exception) -> float:
        """Seconds. The connection is given up: another server may be the one that takes writes now."""
        self._database.drop()
        cause = cause_of(trouble)
        metrics.INBOX_RETRIES.labels(self._name, cause).inc()
        logger.warning("the batch waits", extra={"consumer": self._name, "error": cause})
        return self._backoff.next_delay()
