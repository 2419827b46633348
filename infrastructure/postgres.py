"""One way to connect to PostgreSQL, and one table of the errors that pass by themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

import psycopg
from psycopg import OperationalError
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import _WaitTimeout
from psycopg.waiting import Wait

from domain.errors import CounterfoilError
from infrastructure.pooler import behind_a_pooler


@dataclass(eq=False)
class StoreUnavailable(CounterfoilError):
    """The database could not be used for a while; what was asked was not done.

    cause: name of the error class or its SQLSTATE, never its text, which may quote an address.
    What to do: ask again later. It is safe.
    """

    cause: str

    def __str__(self) -> str:
        return f"The database could not be used ({self.cause}). Nothing was changed; try again."

    @classmethod
    def because_of(cls, error: BaseException) -> Self:
        return cls(cause_of(error))


def cause_of(error: BaseException) -> str:
    """What may be said of an error in a log or to a caller: its SQLSTATE, else its class."""
    if isinstance(error, StoreUnavailable):
        return error.cause
    return getattr(error, "sqlstate", None) or type(error).__name__


@dataclass(frozen=True)
class Timeouts:
    """Seconds. No wait on PostgreSQL is longer than these, whatever becomes of the server or the network."""

    connect: float = 5.0
    lock: float = 5.0
    """A statement that waits longer for a lock fails with SQLSTATE 55P03."""
    statement: float = 30.0
    """A longer statement is cancelled by the server (57014)."""
    idle_in_transaction: float = 30.0
    """A client that sleeps inside a transaction loses its session, and with it its locks."""
    margin: float = 5.0
    """A server that says nothing for `statement` and this much more is given up by the client."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for a reply only so long.

    The server's own timeouts are no help when its replies do not arrive, and neither are TCP keepalives
    when something between the two keeps answering them. Raises OperationalError without SQLSTATE and
    closes itself when there was no reply in time: what became of the statement is then unknown.
    """

    longest_wait: float = 35.0
    made_at: float = 0.0
    """time.monotonic() when it was made."""
    _meanwhile: Callable[[], None] | None = None

    @contextmanager
    def meanwhile(self, work: Callable[[], None]) -> Iterator[None]:
        """Within the block `work` is done, at most once: while PostgreSQL works on a statement that has been sent.

        The statement has been sent to its end, so PostgreSQL's own timeouts hold as ever, however long `work` takes;
        in a pipeline the end would be missing, and a client that stops there would keep its locks. `work` must not
        raise, nor use this connection.
        """
        self._meanwhile = work
        try:
            yield
        finally:
            self._meanwhile = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if self._meanwhile is not None:
            work, self._meanwhile = self._meanwhile, None
            gen = _working_meanwhile(gen, work)
        if timeout is not None:  # psycopg's own limits, such as notifies() has
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.longest_wait)
        except _WaitTimeout:
            self.close()
            raise OperationalError(f"no reply within {self.longest_wait:g} s") from None


def _working_meanwhile(gen: PQGen[RV], work: Callable[[], None]) -> PQGen[RV]:
    """The same waits. The first one for nothing but an answer begins when all is sent: before it, the work is done."""
    has_worked = False
    try:
        waits_for = next(gen)
        while True:
            if waits_for == Wait.R and not has_worked:
                has_worked = True
                work()
            ready = yield waits_for
            waits_for = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def connect(
    dsn: str, *, application_name: str, autocommit: bool = True, timeouts: Timeouts | None = None
) -> Connection:
    """Connects to a server that takes writes, trying each host that the DSN names.

    What the DSN itself says about timeouts and keepalives wins over ours. The server-side timeouts travel
    in the start-up message, which costs no round trip; a pgbouncer in between must be told to let them
    pass (`ignore_startup_parameters = options`), and the role needs them (`ALTER ROLE ... SET`). Behind a
    pooler no statement is prepared, whatever its caller says: the next one may meet another session.

    Raises psycopg.OperationalError; `is_transient` says True to it.
    """
    timeouts = timeouts or Timeouts()
    connection = Connection.connect(_conninfo(dsn, application_name, timeouts), autocommit=True)
    connection.longest_wait = timeouts.statement + timeouts.margin
    connection.made_at = monotonic()
    try:
        if behind_a_pooler(connection):
            connection.prepare_threshold = None
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection


def _conninfo(dsn: str, application_name: str, timeouts: Timeouts) -> str:
    given: dict[str, str | int | None] = dict(conninfo_to_dict(dsn))
    ours: dict[str, str | int | None] = {
        "connect_timeout": round(max(timeouts.connect, 1)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "target_session_attrs": "read-write",
    }
    settings = {
        "lock_timeout": timeouts.lock,
        "statement_timeout": timeouts.statement,
        "idle_in_transaction_session_timeout": timeouts.idle_in_transaction,
    }
    options = [f"-c {name}={round(seconds * 1000)}" for name, seconds in settings.items()]
    options.append(str(given.get("options") or ""))
    always: dict[str, str | int | None] = {
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": " ".join(options).strip(),
    }
    return make_conninfo("", **(ours | given | always))


_TRANSIENT = (
    "08",  # connection exceptions
    "25006",  # a write on a read-only session: the server has become a standby
    "25P03",  # idle in transaction for too long
    "40001",  # serialization failure
    "40003",  # statement completion unknown
    "40P01",  # deadlock
    "53",  # out of connections, memory or disk
    "55P03",  # a lock was not to be had in time
    "57014",  # cancelled, as by statement_timeout
    "57P01",  # the administrator ended the session
    "57P02",  # the server crashed
    "57P03",  # the server starts or stops
    "57P05",  # idle for too long
)
"""SQLSTATEs and their classes (first two characters) that say nothing about the statement itself."""


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed later without a change to it.

    A lost connection, or one that could not be made, has no SQLSTATE: that is transient, whatever its
    text says. An error of psycopg's own about the data (a NUL in a text) has none either and is permanent.
    """
    if isinstance(error, StoreUnavailable):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate:
        return error.sqlstate.startswith(_TRANSIENT)
    return isinstance(error, OperationalError) or type(error) is psycopg.DatabaseError
