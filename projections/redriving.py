"""Another attempt at what is in quarantine: key by key, in order, through the same inbox, while consumers run."""

import logging
from dataclasses import dataclass, field
from threading import Event

import psycopg

from infrastructure.backoff import Backoff
from infrastructure.logs import error_fields
from infrastructure.postgres import Connection, cause_of
from projections import versions
from projections.applying import apply_contracts
from projections.base import Projection
from projections.batch import TOO_OLD
from projections.decoding import Category, Decoded, Decoder, Faulty, Ignored
from projections.entries import ParkedKey, record_of
from projections.faults import HandlerWaits, is_no_event_at_fault
from projections.inbox import claim_or_tell
from projections.key_locks import lock_keys
from projections.order_keeping import Readable
from projections.quarantine import key_hash, storable

logger = logging.getLogger(__name__)

FIRST_OF_KEY = """
    SELECT id FROM quarantined_events
    WHERE consumer_name = %s AND key_hash = %s AND state = 'parked' ORDER BY id LIMIT 1
"""
LONE_ENTRY = "SELECT id FROM quarantined_events WHERE consumer_name = %s AND id = %s AND state = 'parked' FOR UPDATE"
# What remains is a record that it was here. Its bytes are in the topic as long as that keeps them, and what they said
# is applied: nothing is served by one more copy.
RELEASE = """
    UPDATE quarantined_events
    SET state = 'released', closed_at = now(), value = NULL, header_names = '{}', header_values = '{}'
    WHERE id = %s
"""
FAILED_AGAIN = """
    UPDATE quarantined_events
    SET kind = 'culprit', category = %(category)s, reason = %(reason)s, attempts = attempts + 1
    WHERE id = %(id)s AND state = 'parked'
"""

ATTEMPTS = 5
"""At a release that fails for what no event is at fault for, such as a deadlock with a consumer."""


@dataclass(frozen=True)
class FailedAgain:
    """The entry stays where it is, and all that is behind it. fault: why, for now or for good."""

    entry_id: int
    fault: Faulty


@dataclass
class Redrive:
    """What became of one key. released: entries that went on. failed: the one that it ended with, None when nothing
    of the key is left, or when it was told to stop."""

    released: int = 0
    failed: FailedAgain | None = field(default=None)


class Redriver:
    """Releases what is parked. Any number of them may run, and consumers too.

    Guarantees: a key is released in the order in which it was parked, one entry in one transaction with its
    effect and its claim, up to the first that fails again; that one's reason is renewed, unless its handler
    only waits. Killed at any moment, it leaves each entry either released and applied once, or parked. An
    event that was applied already is released without an effect.
    """

    def __init__(self, projection: Projection, connection: Connection) -> None:
        self._projection, self._connection = projection, connection
        self._name = projection.consumer_name
        self._decoder = Decoder(projection.contracts)

    def redrive(self, key: ParkedKey, stop: Event) -> Redrive:
        """Raises psycopg.Error for what no event is at fault for, when it does not pass; then what was released is,
        and the rest is parked as before."""
        done = Redrive()
        while not stop.is_set():
            match self._patiently(key, stop):
                case int():
                    done.released += 1
                case FailedAgain() as failed:
                    done.failed = failed
                    return done
                case None:
                    return done
        return done

    def _patiently(self, key: ParkedKey, stop: Event) -> int | FailedAgain | None:
        backoff = Backoff(base=0.05, cap=2.0)
        while True:
            try:
                return self._step(key)
            except psycopg.Error:
                if self._connection.closed or backoff.attempts >= ATTEMPTS - 1 or backoff.wait(stop):
                    raise

    def _step(self, key: ParkedKey) -> int | FailedAgain | None:
        """The id of the first entry of the key, released; or why it cannot be; None when there is none."""
        entry_id, fault = None, None
        try:
            with self._connection.transaction():
                # The version before the key, as consumers do: or a swap that waits could close a circle.
                versions.hold(self._connection, self._name, self._projection.version)
                entry_id = self._first(key)
                if entry_id is None:
                    return None
                fault = self._apply(entry_id)
                if fault is not None:
                    raise psycopg.Rollback
                self._connection.execute(RELEASE, (entry_id,))
        except HandlerWaits as waits:
            assert entry_id is not None  # it has a handler
            about = {"consumer": self._name, "entry": entry_id, "reason": waits.reason}
            logger.warning("redrive ends: the handler waits", extra=about)
            return FailedAgain(entry_id, Faulty(Category.HANDLER, f"its handler waits: {waits.reason}"))
        except Exception as error:
            if entry_id is None or is_no_event_at_fault(error):
                raise
            logger.warning("redrive failed", extra={"consumer": self._name, "entry": entry_id} | error_fields(error))
            fault = Faulty(Category.HANDLER, f"handling failed when redriven, with {cause_of(error)}")
        if fault is None:
            logger.info("released from quarantine", extra={"consumer": self._name, "entry": entry_id})
            return entry_id
        self._connection.execute(
            FAILED_AGAIN, {"category": fault.category.value, "reason": storable(fault.reason), "id": entry_id}
        )
        return FailedAgain(entry_id, fault)

    def _first(self, key: ParkedKey) -> int | None:
        """Locked until the transaction ends, and with it its key: no consumer parks or applies more of it meanwhile."""
        if key.key is None:
            row = self._connection.execute(LONE_ENTRY, (self._name, key.entry_id)).fetchone()
        else:
            hashed = key_hash(key.key)
            lock_keys(self._connection, self._name, [hashed])
            row = self._connection.execute(FIRST_OF_KEY, (self._name, hashed)).fetchone()
        return row[0] if row else None

    def _apply(self, entry_id: int) -> Faulty | None:
        """As a consumer would. None when there is nothing left to do for it."""
        record = record_of(self._connection, self._name, entry_id)
        assert record is not None  # it is locked
        match self._decoder.decode(record):
            case Faulty() as fault:
                return fault
            case Ignored():
                return None
            case Decoded(contract):
                readable = Readable(record, contract)
        event_id = readable.contract.event_id
        claims = claim_or_tell(self._connection, self._name, [event_id])
        if event_id in claims.too_old:
            return Faulty(Category.TOO_OLD, TOO_OLD)
        if event_id not in claims.new:
            return None
        answer = apply_contracts([readable.contract], self._projection, self._connection).get(event_id)
        return Faulty(Category.REFUSED, answer.reason) if answer else None
