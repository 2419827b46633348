"""Appends events in one statement and one round trip, and finds out what became of it when the reply is lost.

The statement is the whole transaction: no lock is taken beyond what an INSERT takes anyway, and nothing is
notified inside it. The primary key over aggregate id and version decides who was first.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import psycopg
from eventsourcing.persistence import IntegrityError, StoredEvent
from psycopg.errors import UniqueViolation

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.backoff import Backoff
from infrastructure.logs import error_fields
from infrastructure.pool import Pool
from infrastructure.postgres import Connection, StoreUnavailable, cause_of, is_transient

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class CommitOutcomeUnknown(CounterfoilError):
    """The connection was lost while events were being stored, and the database stays out of reach.

    The events may be stored or not. What to do: send the same command again, with the same ids, until it
    is answered. Do not send it under new ids.
    """

    cause: str

    def __str__(self) -> str:
        return f"Stored or not, that is unknown ({self.cause}). Send the same command again, with the same ids."


INSERT_ONE = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    VALUES (%s, %s, %s, %s) RETURNING position
"""

INSERT_SEVERAL = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT originator_id, originator_version, topic, state
    FROM unnest(%s::text[], %s::bigint[], %s::text[], %b::bytea[])
         WITH ORDINALITY AS new (originator_id, originator_version, topic, state, place)
    ORDER BY place RETURNING position
"""

FIND_EXACTLY_THESE = """
    SELECT stored.position
    FROM unnest(%s::text[], %s::bigint[], %s::text[], %b::bytea[])
         WITH ORDINALITY AS ours (originator_id, originator_version, topic, state, place)
    JOIN stored_events AS stored USING (originator_id, originator_version)
    WHERE stored.topic = ours.topic AND stored.state = ours.state
    ORDER BY place
"""

_VERSIONS_ARE_UNIQUE = "stored_events_pkey"


class Appender:
    """Stores the events of one command together or not at all.

    patience: seconds after which no new attempt is made; the last one may last as long as its timeouts.
    stop: set it to end the attempts early.
    """

    def __init__(self, pool: Pool, patience: float, stop: Event) -> None:
        self._pool, self._patience, self._stop = pool, patience, stop

    def append(self, events: Sequence[StoredEvent], in_doubt: bool = False) -> list[int]:
        """Stores the events; returns their positions, ascending in the order given.

        in_doubt: an attempt elsewhere may have stored them already, or may be about to.

        Guarantees: when it returns, they are stored, exactly once. When it raises IntegrityError or
        StoreUnavailable, none of them is. A lost reply is followed up: success is never reported as failure.

        Raises IntegrityError when another event has one of these versions, StoreUnavailable when the
        database was out of reach or busy, CommitOutcomeUnknown when it got out of reach in the middle;
        psycopg.Error when the statement can never succeed.
        """
        deadline, backoff = time.monotonic() + self._patience, Backoff(base=0.02, cap=1.0)
        while True:
            try:
                with self._pool.connection() as connection:
                    try:
                        return _append(connection, events, in_doubt)
                    except psycopg.Error as error:
                        in_doubt = in_doubt or may_be_stored(connection, error)
                        drop_if_read_only(connection, error)
                        raise
            except (psycopg.Error, StoreUnavailable) as error:
                if not is_transient(error):
                    raise
                logger.warning("an append is tried again", extra={"in_doubt": in_doubt} | error_fields(error))
                if backoff.wait(self._stop) or time.monotonic() > deadline:
                    raise _out_of_reach(error, in_doubt) from error


def may_be_stored(connection: Connection, error: psycopg.Error) -> bool:
    """An error that ends the session may come after the commit. Any other undoes the statement, and says so."""
    return connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def drop_if_read_only(connection: Connection, error: psycopg.Error) -> None:
    """The server has become a standby: the next connection looks for the primary."""
    if error.sqlstate == "25006":
        connection.close()


def _append(connection: Connection, events: Sequence[StoredEvent], in_doubt: bool) -> list[int]:
    """in_doubt: an earlier attempt may have stored these events, or may be about to.

    If it is about to, this INSERT waits for it. Either way it then meets their rows, and they are ours.
    """
    try:
        return _counted("stored", _insert(connection, events))
    except UniqueViolation as error:
        if error.diag.constraint_name != _VERSIONS_ARE_UNIQUE:
            raise
        if in_doubt and (positions := _find(connection, events)):
            return _counted("found", positions)
        metrics.APPENDS.labels("conflict").inc(len(events))
        raise IntegrityError("Another event has one of these versions; load the aggregate again") from error


def _insert(connection: Connection, events: Sequence[StoredEvent]) -> list[int]:
    if len(events) == 1:
        (event,) = events
        values = (event.originator_id, event.originator_version, event.topic, event.state)
        rows = connection.execute(INSERT_ONE, values, prepare=True, binary=True)
    else:
        rows = connection.execute(INSERT_SEVERAL, columns(events), prepare=True, binary=True)
    return [position for (position,) in rows]


def _find(connection: Connection, events: Sequence[StoredEvent]) -> list[int] | None:
    """The positions of exactly these events, None when they are not stored. They are stored all or none."""
    positions = [position for (position,) in connection.execute(FIND_EXACTLY_THESE, columns(events))]
    return positions if len(positions) == len(events) else None


def columns(events: Sequence[StoredEvent]) -> tuple[list[str], list[int], list[str], list[bytes]]:
    return (
        [str(event.originator_id) for event in events],
        [event.originator_version for event in events],
        [event.topic for event in events],
        [event.state for event in events],
    )


def _counted(outcome: str, positions: list[int]) -> list[int]:
    metrics.APPENDS.labels(outcome).inc(len(positions))
    return positions


def _out_of_reach(error: psycopg.Error | StoreUnavailable, in_doubt: bool) -> CounterfoilError:
    metrics.APPENDS.labels("unknown" if in_doubt else "unavailable").inc()
    return CommitOutcomeUnknown(cause_of(error)) if in_doubt else StoreUnavailable.because_of(error)
