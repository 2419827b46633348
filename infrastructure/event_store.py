"""The event store behind the library's port: `Orders(env=store_env(dsn))` keeps its events in PostgreSQL."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from threading import Event
from time import monotonic
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import psycopg
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    Notification,
    ProcessRecorder,
    StoredEvent,
    TrackingRecorder,
)
from eventsourcing.utils import Environment, EnvType

from infrastructure.append import Appender
from infrastructure.backoff import Backoff
from infrastructure.event_reader import RecordedEvent
from infrastructure.group_append import LONGEST_LOCK_WAIT, GroupAppender
from infrastructure.hints import SLOWING, HintSender
from infrastructure.pool import Pool
from infrastructure.postgres import Connection, StoreUnavailable, Timeouts, connect, is_transient
from infrastructure.settings import SettingsError
from infrastructure.shared_reader import SharedReader
from infrastructure.snapshots import PostgresSnapshots

T = TypeVar("T")

_DSN = "COUNTERFOIL_STORE_DSN"
_CONNECTIONS = "COUNTERFOIL_STORE_CONNECTIONS"
_PATIENCE = "COUNTERFOIL_STORE_PATIENCE"

_TIMEOUTS = Timeouts(statement=10.0, margin=3.0)
_IN_GROUPS = Timeouts(lock=LONGEST_LOCK_WAIT, statement=10.0, margin=3.0)
_LARGEST = 2**63 - 1
_PAGE = 1_000

LOAD_FORWARDS = """
    SELECT originator_id, originator_version, topic, state FROM stored_events
    WHERE originator_id = %s AND originator_version > %s AND originator_version <= %s
    ORDER BY originator_version LIMIT %s
"""

LOAD_BACKWARDS = """
    SELECT originator_id, originator_version, topic, state FROM stored_events
    WHERE originator_id = %s AND originator_version > %s AND originator_version <= %s
    ORDER BY originator_version DESC LIMIT %s
"""


def store_env(dsn: str, *, connections: int = 16, patience: float = 15.0) -> dict[str, str]:
    """What an Application needs to keep its events in this database.

    connections: at most so many at a time, made when threads need them. patience: seconds for which an
    append is tried again while the database is out of reach.
    The mapping holds the password, and so does the application's `env`: for no log.
    """
    return {
        "PERSISTENCE_MODULE": f"{Factory.__module__}:{Factory.__qualname__}",
        _DSN: dsn,
        _CONNECTIONS: str(connections),
        _PATIENCE: str(patience),
    }


class PostgresRecorder(ApplicationRecorder):
    """Stores events and reads them back. Safe for many threads, and in a forked child.

    Every method raises StoreUnavailable when the database stays out of reach for `patience` seconds.
    """

    def __init__(self, dsn: str, connections: int, patience: float) -> None:
        self._dsn, self._patience = dsn, patience
        self._stop = Event()
        self._pool = Pool(self._connect, connections)
        self._appender = GroupAppender(Appender(self._pool, patience, self._stop), partial(self._connect, _IN_GROUPS))
        self._hints = HintSender(dsn, pace=SLOWING)
        self._reader = SharedReader(self._connect)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        """Appends as GroupAppender.append says, then sends a hint. Returns the positions, ascending."""
        if kwargs.get("tracking") is not None:
            raise NotImplementedError("a tracking position cannot be stored with events; use a projection's inbox")
        if not stored_events:
            return []
        positions = self._appender.append(stored_events)
        self._hints.hint()
        return positions

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """The events of one aggregate with versions above `gt` up to `lte`, at most `limit`, in order."""
        bounds = (str(originator_id), gt or 0, _LARGEST if lte is None else lte, limit)
        statement = LOAD_BACKWARDS if desc else LOAD_FORWARDS

        def load(connection: Connection) -> list[StoredEvent]:
            rows = connection.execute(statement, bounds, prepare=True, binary=True)
            return [StoredEvent(*row) for row in rows]

        return self._patiently(lambda: self._with_connection(load))

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> list[Notification]:
        """Events by position, from `start` to `stop`, at most `limit`, of these topics if any are given.

        Ends before the first position that is not settled (gap_proof.py), so that going on from the last one
        never skips an event.
        """
        after = 0 if start is None else start - 1 if inclusive_of_start else start
        events = islice(self._settled_events(max(after, 0), stop, topics), limit)
        return [
            Notification(event.originator_id, event.originator_version, event.topic, event.state, event.position)
            for event in events
        ]

    def max_notification_id(self) -> int | None:
        """The highest position that is visible, settled or not; None when there is none."""
        return self._patiently(self._reader.highest_position) or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> NoReturn:
        raise NotImplementedError("follow the store with infrastructure.event_reader or through the relay and Kafka")

    def snapshots(self) -> PostgresSnapshots:
        """Through the same connections."""
        return PostgresSnapshots(self._pool)

    def close(self) -> None:
        """Sends a pending hint, ends attempts that are under way and closes the connections. Safe to repeat."""
        self._stop.set()
        self._hints.close()
        self._reader.close()
        self._appender.close()
        self._pool.close()

    def _settled_events(self, after: int, stop: int | None, topics: Sequence[str]) -> Iterator[RecordedEvent]:
        while True:
            page = self._patiently(partial(self._reader.read, after, _PAGE))
            for event in page.events:
                if stop is not None and event.position > stop:
                    return
                if not topics or event.topic in topics:
                    yield event
            if len(page.events) < _PAGE:
                return
            after = page.events[-1].position

    def _patiently(self, work: Callable[[], T]) -> T:
        """Work that changes nothing, again until it succeeds or patience ends."""
        deadline, backoff = monotonic() + self._patience, Backoff(base=0.02, cap=1.0)
        while True:
            try:
                return work()
            except (psycopg.Error, StoreUnavailable) as error:
                if not is_transient(error):
                    raise
                if backoff.wait(self._stop) or monotonic() > deadline:
                    raise StoreUnavailable.because_of(error) from error

    def _with_connection(self, work: Callable[[Connection], T]) -> T:
        with self._pool.connection() as connection:
            return work(connection)

    def _connect(self, timeouts: Timeouts = _TIMEOUTS) -> Connection:
        return connect(self._dsn, application_name="counterfoil store", timeouts=timeouts)


class Factory(InfrastructureFactory[TrackingRecorder]):
    """Makes the recorder from an application's environment; see `store_env`. Creates no tables."""

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        self._recorder: PostgresRecorder | None = None

    def application_recorder(self) -> PostgresRecorder:
        dsn = self.env.get(_DSN)
        if not dsn:
            raise SettingsError((_DSN,), "no event store database is given")
        if self._recorder is None:
            connections, patience = self.env.get(_CONNECTIONS, "16"), self.env.get(_PATIENCE, "15")
            self._recorder = PostgresRecorder(dsn, int(connections), float(patience))
        return self._recorder

    def snapshots(self) -> PostgresSnapshots:
        return self.application_recorder().snapshots()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        raise NotImplementedError(f"no recorder for {purpose}; snapshots are kept by snapshots()")

    def tracking_recorder(self, tracking_recorder_class: type[TrackingRecorder] | None = None) -> TrackingRecorder:
        raise NotImplementedError("positions of consumers are kept by checkpoints and inboxes")

    def process_recorder(self) -> ProcessRecorder:
        raise NotImplementedError("events are processed by projections with an inbox")
