"""Appends of threads that come together go in one statement: one round trip and one commit for all of them.

A thread that finds a free seat leads: it takes along whatever others wait at that moment. The others wait
for its outcome instead of for a connection. Nobody waits for company, so a lone append is not delayed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock
from typing import LiteralString

import psycopg
from eventsourcing.persistence import IntegrityError, StoredEvent

from infrastructure import metrics
from infrastructure.append import Appender, columns, drop_if_read_only, may_be_stored
from infrastructure.fork import in_each_forked_child
from infrastructure.pool import Pool
from infrastructure.postgres import Connection, StoreUnavailable

INSERT_THOSE_THAT_ARE_NEW = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT originator_id, originator_version, topic, state
    FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::bytea[])
         WITH ORDINALITY AS new (originator_id, originator_version, topic, state, place)
    ORDER BY place
    ON CONFLICT ON CONSTRAINT stored_events_pkey DO NOTHING
    RETURNING originator_id, originator_version, position
"""

INSERT_IT_IF_IT_IS_NEW = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%b, %b, %b, %b)
    ON CONFLICT ON CONSTRAINT stored_events_pkey DO NOTHING
    RETURNING originator_id, originator_version, position
"""

SEATS = 2
"""Statements under way at a time. One would group best; a second keeps the others going while the first waits."""

LONGEST_LOCK_WAIT = 0.2
"""Seconds for which a group waits for a foreign transaction that holds one of its versions. Then everybody goes on
alone, so that only whom it concerns waits on. It is the lock timeout of the connections that groups use."""

LARGEST_GROUP = 128
_LOOK_AGAIN = 1.0
"""Seconds after which a waiting thread looks whether it could lead itself; only a precaution."""


class GroupAppender:
    """Appender.append for many threads, with the same guarantees to each of them.

    Each caller gets its own outcome: a version conflict is reported to whom it concerns and to nobody else.
    When a group fails as a whole, every caller goes on alone, as Appender does. Only single events are
    grouped: several events of one command are stored together or not at all, which a group cannot promise.
    """

    def __init__(self, appender: Appender, connect: Callable[[], Connection]) -> None:
        """connect: makes a connection whose lock timeout is LONGEST_LOCK_WAIT."""
        self._appender, self._pool = appender, Pool(connect, SEATS)
        self._waiting: deque[_Ticket]
        self._seats: BoundedSemaphore
        self._start_afresh()
        in_each_forked_child(self._start_afresh)

    def append(self, events: Sequence[StoredEvent]) -> list[int]:
        """As Appender.append."""
        if len(events) != 1:
            return self._appender.append(events)
        outcome = self._outcome(events[0])
        if isinstance(outcome, int):
            return [outcome]
        if isinstance(outcome, _Conflict):
            raise IntegrityError("Another event has this version; load the aggregate again")
        return self._appender.append(events, outcome.in_doubt)

    def close(self) -> None:
        self._pool.close()

    def _outcome(self, event: StoredEvent) -> "_Outcome":
        ticket = _Ticket(event)
        self._waiting.append(ticket)
        while ticket.outcome is None:
            if self._seats.acquire(blocking=False):
                try:
                    self._lead()
                finally:
                    self._seats.release()
                    self._wake_a_leader()
            else:
                ticket.wait(_LOOK_AGAIN)
        return ticket.outcome

    def _lead(self) -> None:
        group = self._next_group()
        if not group:
            return
        outcomes: Sequence[_Outcome] = [_GoOnAlone(in_doubt=True)] * len(group)
        try:
            outcomes = self._store(group)
        except (psycopg.Error, StoreUnavailable):
            outcomes = [_GoOnAlone(in_doubt=False)] * len(group)  # there was no connection to be had
        finally:
            for ticket, outcome in zip(group, outcomes, strict=True):
                ticket.settle(outcome)

    def _next_group(self) -> "list[_Ticket]":
        """Those who wait now, the first come first, but of two that want the same version only the first."""
        group: dict[tuple[str, int], _Ticket] = {}
        later: list[_Ticket] = []
        while self._waiting and len(group) < LARGEST_GROUP:
            try:
                ticket = self._waiting.popleft()
            except IndexError:
                break  # the other leader was faster
            if group.setdefault(ticket.version, ticket) is not ticket:
                later.append(ticket)
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    def _store(self, group: "Sequence[_Ticket]") -> "list[_Outcome]":
        with self._pool.connection() as connection:
            statement, values = _insert_of([ticket.event for ticket in group])
            try:
                rows = connection.execute(statement, values, prepare=True, binary=True).fetchall()
            except psycopg.Error as error:
                metrics.APPENDS.labels("group_failed").inc(len(group))
                in_doubt = may_be_stored(connection, error)
                drop_if_read_only(connection, error)
                return [_GoOnAlone(in_doubt)] * len(group)
        metrics.APPENDS.labels("stored").inc(len(rows))
        metrics.APPENDS.labels("conflict").inc(len(group) - len(rows))
        positions = {(originator_id, version): position for originator_id, version, position in rows}
        return [positions.get(ticket.version, _Conflict()) for ticket in group]

    def _wake_a_leader(self) -> None:
        with suppress(IndexError):
            self._waiting[0].wake()

    def _start_afresh(self) -> None:
        self._waiting = deque()
        self._seats = BoundedSemaphore(SEATS)


def _insert_of(events: Sequence[StoredEvent]) -> tuple[LiteralString, Sequence[object]]:
    """Who is alone, as the one thread of a process is, is spared the arrays: they cost a third of an append's time."""
    if len(events) > 1:
        return INSERT_THOSE_THAT_ARE_NEW, columns(events)
    (event,) = events
    values = (str(event.originator_id), event.originator_version, event.topic, event.state)
    return INSERT_IT_IF_IT_IS_NEW, values


class _Conflict:
    """Another event had this version already."""


@dataclass(frozen=True)
class _GoOnAlone:
    """The group failed. in_doubt: whether it may have been stored all the same."""

    in_doubt: bool


_Outcome = int | _Conflict | _GoOnAlone


class _Ticket:
    """One waiting event, and in the end its outcome: its position when it is stored."""

    __slots__ = ("_woken", "event", "outcome", "version")

    def __init__(self, event: StoredEvent) -> None:
        self.event = event
        self.version = str(event.originator_id), event.originator_version
        self.outcome: _Outcome | None = None
        self._woken = Lock()
        self._woken.acquire()

    def wait(self, seconds: float) -> None:
        self._woken.acquire(timeout=seconds)

    def wake(self) -> None:
        with suppress(RuntimeError):  # woken already
            self._woken.release()

    def settle(self, outcome: _Outcome) -> None:
        self.outcome = outcome
        self.wake()
