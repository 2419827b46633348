"""A process that is started while its database is away: it waits in sight, and begins by itself.

What passes is waited for: nobody answers, the server starts or stops, is full for a moment, or takes no writes. What
does not pass is the operator's: a server that answers and goes on not letting us in, or a schema that this code cannot
use. It ends the process.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Event
from time import monotonic

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.errors import ConnectionTimeout
from psycopg.pq import PGconn, Ping

from domain.errors import CounterfoilError
from infrastructure import bounded, metrics
from infrastructure.backoff import Backoff
from infrastructure.postgres import Timeouts, cause_of, connect, is_transient
from infrastructure.supervisor import beat

logger = logging.getLogger(__name__)

REFUSALS = 3
REFUSED_SECONDS = 10.0
"""So many in a row, over so long, before it is the operator's: a server may come up between two questions, or be full
for as long as others take to start beside us."""

_TURN = 0.1
"""Seconds between two looks at the stop event."""
_PING_SECONDS = 2


@dataclass(eq=False)
class NotLetIn(CounterfoilError):
    """PostgreSQL, or the pooler in front of it, answers and does not let this process in. Nothing was done.

    What to do: put the connection string right, or the user, the database or their limits at the server.
    """

    def __str__(self) -> str:
        return (
            "PostgreSQL answers, and does not let this process in. Look at the user, the password, the name of the "
            "database, the right to connect to it, and how many connections it allows; the server's log names which."
        )


def wait_for_database(
    dsn: str, loop: str, first_use: Callable[[], object], stop: Event, refused_seconds: float = REFUSED_SECONDS
) -> bool:
    """Calls `first_use` until the database is there for it. True then; False at once when told to stop before.

    first_use: opens connections of its own and closes them. It may be called many times, in a thread of ours, which
    is left behind when we are told to stop. loop: the name that the log and the metrics have for the process.
    refused_seconds: for how long a server that lets nobody in is waited for, at least.
    Raises NotLetIn, and what `first_use` raises that does not pass by itself.
    """
    backoff, refused, said = Backoff(base=0.1, cap=5.0), _Refusals(refused_seconds), ""
    try:
        while not stop.is_set():
            attempt = _start(lambda: _why_not(dsn, first_use))
            while not wait([attempt], _TURN).done:
                beat(loop)
                if stop.is_set():
                    return False
            reason = attempt.result()
            if reason is None:
                return True
            if refused.go_on(reason == _REFUSED):
                raise NotLetIn
            metrics.WAITING_FOR_DATABASE.labels(loop).set(1)
            if reason != said:
                said = reason
                logger.warning("waiting for the database", extra={"loop": loop, "reason": reason})
            backoff.wait(stop)
        return False
    finally:
        metrics.WAITING_FOR_DATABASE.labels(loop).set(0)


def _start(call: Callable[[], str | None]) -> "Future[str | None]":
    """In a thread: looking up a host's name and connecting take no notice of a stop."""
    answer: Future[str | None] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  it is the caller's
            answer.set_exception(error)

    bounded.start(run, "first-connection")
    return answer


class _Refusals:
    """Those in a row, and since when."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count, self._since = 0, 0.0

    def go_on(self, refused: bool) -> bool:
        """Takes what the last attempt came to. True when it is no matter of a moment any more."""
        if not refused:
            self._count = 0
            return False
        if self._count == 0:
            self._since = monotonic()
        self._count += 1
        return self._count >= REFUSALS and monotonic() - self._since >= self._seconds


_REFUSED = "it lets nobody in"


def _why_not(dsn: str, first_use: Callable[[], object]) -> str | None:
    """None when it was done. Raises what does not pass by itself."""
    try:
        first_use()
    except psycopg.Error as error:
        if not is_transient(error):
            raise
        if error.sqlstate or isinstance(error, ConnectionTimeout):
            return cause_of(error)
    else:
        return None
    if _takes_no_writes(dsn):
        return "it takes no writes"
    # A connection that failed has no SQLSTATE, whatever the server said; this question tells the one from the other.
    match Ping(PGconn.ping(make_conninfo(dsn, connect_timeout=_PING_SECONDS).encode())):
        case Ping.REJECT:
            return "it starts or stops"
        case Ping.OK:
            return _REFUSED
        case _:
            return "no answer"


def _takes_no_writes(dsn: str) -> bool:
    """Or has done so a moment ago: it lets us in as long as we do not ask for that."""
    try:
        anyhow = make_conninfo(dsn, target_session_attrs="any")
        connect(anyhow, application_name="counterfoil start", timeouts=Timeouts(connect=_PING_SECONDS)).close()
    except psycopg.Error:
        return False
    return True
