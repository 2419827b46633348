"""Stored events by position: each committed one exactly once, in order, never past an unsettled gap."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.gap_proof import GapProof, Holder
from infrastructure.postgres import Connection


@dataclass(eq=False)
class NotAPrimary(CounterfoilError):
    """The server is a standby. It does not know who is writing, so nothing can be proven there.

    What to do: let the connection string name the primary, or all servers.
    """

    def __str__(self) -> str:
        return "The event store is read from the primary only, and this server is a standby."


class RecordedEvent(NamedTuple):
    """A stored event with its place. position: 64-bit, ascending, with holes.

    A row as it was fetched. An object with a dictionary of its own took three times as long to make, for every event.
    """

    originator_id: str
    originator_version: int
    topic: str
    state: bytes
    position: int


@dataclass(frozen=True)
class Page:
    """What one read delivers.

    settled: False when there are events beyond these that may not be delivered yet.
    held_by: then, the open transactions that may still add an event before those; none when it was not
    looked yet, because those events have only just appeared.
    anchor: the event at the position that was read from, None when there is none; seen in the same snapshot.
    """

    events: Sequence[RecordedEvent]
    settled: bool
    held_by: tuple[Holder, ...] = ()
    anchor: RecordedEvent | None = None


@dataclass(frozen=True)
class HolderReport:
    """Who holds the reader back. What this session may not see of the others is None (role pg_monitor sees all).

    query: the text of its last statement. It can quote data: show it to a person who asks, never log it.
    """

    pid: int | None
    application_name: str | None
    state: str | None
    query_start: datetime | None
    transaction_age: timedelta | None
    query: str | None


READ_EVENTS = """
    SELECT originator_id, originator_version, topic, state, position
    FROM stored_events WHERE position >= %s ORDER BY position LIMIT %s
"""

READ_EVENTS_WITHIN = """
    SELECT originator_id, originator_version, topic, state, position
    FROM (
        SELECT originator_id, originator_version, topic, state, position,
               sum(octet_length(state)) FILTER (WHERE position > %(after)s)
                   OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM stored_events WHERE position >= %(after)s ORDER BY position LIMIT %(limit)s
    ) AS page
    WHERE coalesce(before, 0) < %(bytes)s
    ORDER BY position
"""

OPEN_WRITE_TRANSACTIONS = """
    SELECT DISTINCT pid, virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND relation = 'stored_events'::regclass
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

DESCRIBE_OPEN_WRITE_TRANSACTIONS = """
    SELECT lock.pid, coalesce(activity.application_name, prepared.gid),
           CASE WHEN lock.pid IS NULL THEN 'prepared' ELSE activity.state END,
           activity.query_start, clock_timestamp() - coalesce(activity.xact_start, prepared.prepared), activity.query
    FROM pg_locks AS lock
    LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
    LEFT JOIN (pg_locks AS own JOIN pg_prepared_xacts AS prepared ON prepared.transaction = own.transactionid)
           ON lock.pid IS NULL AND own.pid IS NULL AND own.virtualtransaction = lock.virtualtransaction
    WHERE lock.locktype = 'relation' AND lock.mode = 'RowExclusiveLock' AND lock.granted
      AND lock.relation = 'stored_events'::regclass
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY 5 DESC NULLS LAST
"""

HIGHEST_POSITION = "SELECT coalesce(max(position), 0) FROM stored_events"

NAMESPACE = "SELECT namespace FROM store_identity"

IS_STANDBY = "SELECT pg_is_in_recovery()"


class EventReader:
    """Reads the events of a store in the order of their positions; gap_proof.py says why none is skipped.

    Guarantees: a position is delivered only when every lower one that will ever exist has been delivered or
    is in the same page. Only transactions that write events can hold it back; other tables, other
    databases and readers cannot. It never waits for anyone: a read returns what can be delivered now.

    It needs a connection of its own in autocommit mode, and is renewed with it: after an error make a new
    connection and a new reader. psycopg's errors come through unchanged.
    Raises NotAPrimary, and ValueError when the connection is not in autocommit mode.
    """

    def __init__(self, connection: Connection) -> None:
        if not connection.autocommit:
            raise ValueError("the proof needs a new snapshot for each statement: use autocommit")
        self._connection = connection
        self._proof = GapProof()
        if self._one(IS_STANDBY):
            raise NotAPrimary

    def read(self, after: int, limit: int, max_bytes: int | None = None) -> Page:
        """The next events after a position, at most `limit` of them. One round trip, three at a gap.

        max_bytes: no further event once the states of those before it are as large as that, or larger; so there
        is at least one, and what is read is bounded by that and one event.
        """
        anchor, events = self._rows(after, limit, max_bytes)
        deliverable = self._before_the_first_unsettled_gap(after, events)
        if deliverable == len(events):
            return Page(events, settled=True, anchor=anchor)
        holders = self._holders()
        if self._proof.look(after, events[-1].position, holders):
            metrics.GAP_PROOFS.inc()
            anchor, events = self._rows(after, limit, max_bytes)
            deliverable = self._before_the_first_unsettled_gap(after, events)
            if deliverable == len(events):
                return Page(events, settled=True, anchor=anchor)
        if self._proof.awaited:
            metrics.GAP_WAITS.inc()
        return Page(events[:deliverable], settled=False, held_by=tuple(self._proof.awaited), anchor=anchor)

    def highest_position(self) -> int:
        """Of all that is visible, settled or not; 0 when there is nothing."""
        return int(self._one(HIGHEST_POSITION))

    def namespace(self) -> UUID:
        """What makes the event ids of this store its own."""
        namespace: UUID = self._one(NAMESPACE)
        return namespace

    def why(self) -> list[HolderReport]:
        """Every open transaction that has written events, the oldest first. What holds a reader back is among them."""
        return [HolderReport(*row) for row in self._connection.execute(DESCRIBE_OPEN_WRITE_TRANSACTIONS)]

    def _rows(self, after: int, limit: int, max_bytes: int | None) -> tuple[RecordedEvent | None, list[RecordedEvent]]:
        if max_bytes is None:
            found = self._connection.execute(READ_EVENTS, (after, limit + 1), prepare=True, binary=True)
        else:
            bounds = {"after": after, "limit": limit + 1, "bytes": max_bytes}
            found = self._connection.execute(READ_EVENTS_WITHIN, bounds, prepare=True, binary=True)
        events = list(map(RecordedEvent._make, found.fetchall()))
        if events and events[0].position == after:
            return events[0], events[1:]
        return None, events[:limit]

    def _before_the_first_unsettled_gap(self, after: int, events: Sequence[RecordedEvent]) -> int:
        """How many of the events may be delivered."""
        if not events or events[-1].position <= max(self._proof.settled, after + len(events)):
            return len(events)
        expected = after + 1
        for index, event in enumerate(events):
            if event.position != expected and event.position > self._proof.settled + 1:
                return index
            expected = event.position + 1
        return len(events)

    def _holders(self) -> frozenset[Holder]:
        return frozenset(Holder(*row) for row in self._connection.execute(OPEN_WRITE_TRANSACTIONS, prepare=True))

    def _one(self, statement: LiteralString) -> Any:
        row = self._connection.execute(statement).fetchone()
        return row[0] if row else None
