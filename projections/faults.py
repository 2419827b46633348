"""Whose fault it is when a batch fails: that decides whether to wait, to look for the event, or to give it up."""

from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg.errors import PipelineAborted

from domain.errors import CounterfoilError
from infrastructure.postgres import is_transient
from projections.versions import OtherVersion


class Fault(StrEnum):
    MOMENT = "moment"
    """It passes by itself: the database is away, read-only or busy, or others hold a lock. The same batch is
    tried again, after a while; no attempt is spent, and no event is blamed."""
    INSTALLATION = "installation"
    """Any event would fail: log-in, grants, tables or their version, disk. Until somebody repairs it, as above."""
    EVENT = "event"
    """The database does not take what this event says, now or later: quarantine, without another attempt."""
    HANDLER = "handler"
    """Anything else, which may pass or not: some attempts, then quarantine."""


_BY_SQLSTATE = {
    "0A": Fault.INSTALLATION,  # not supported here; also a plan that a change of the table has made useless
    "22": Fault.EVENT,  # a value that its type does not take
    "23": Fault.EVENT,  # a constraint
    "26": Fault.INSTALLATION,  # a prepared statement that the session does not know: a pooler has mixed them up
    "28": Fault.INSTALLATION,  # log-in
    "3D": Fault.INSTALLATION,  # no such database
    "3F": Fault.INSTALLATION,  # no such schema
    "42501": Fault.INSTALLATION,  # grants
    "42P01": Fault.INSTALLATION,  # no such table
    "42703": Fault.INSTALLATION,  # no such column
    "42883": Fault.INSTALLATION,  # no such function
    "58": Fault.INSTALLATION,  # the server's disk or files
    "XX001": Fault.INSTALLATION,  # damaged data
    "XX002": Fault.INSTALLATION,  # a damaged index
}
"""By SQLSTATE or its class (first two characters). What passes by itself is in infrastructure.postgres."""


class StopAsked(Exception):
    """The process was told to stop; the batch is rolled back."""


class TooSlow(Exception):
    """The batch takes too long; it is rolled back, to be done in smaller parts."""


@dataclass(eq=False)
class HandlerWaits(CounterfoilError):
    """A handler answered that an event cannot be applied yet. reason: the handler's own, without values.

    What to do: see that what it waits for happens; then the event is applied without further help.
    """

    reason: str

    def __str__(self) -> str:
        return f"The handler waits: {self.reason}. See that it happens, and the event is applied."


def fault_of(error: BaseException) -> Fault:
    """By type and SQLSTATE, never by text. An error without SQLSTATE is a connection's or psycopg's own."""
    if isinstance(error, PipelineAborted):  # what follows from an error that the handler has swallowed
        return Fault.HANDLER
    if isinstance(error, StopAsked | TooSlow | HandlerWaits) or is_transient(error):
        return Fault.MOMENT
    if isinstance(error, OtherVersion):
        return Fault.INSTALLATION
    if not isinstance(error, psycopg.Error):
        return Fault.HANDLER
    if error.sqlstate is None:  # psycopg itself refuses data such as a NUL in a text
        return Fault.EVENT if isinstance(error, psycopg.DataError) else Fault.HANDLER
    return _BY_SQLSTATE.get(error.sqlstate) or _BY_SQLSTATE.get(error.sqlstate[:2]) or Fault.HANDLER


def is_no_event_at_fault(error: BaseException) -> bool:
    """Whether the same batch may be applied later as it is: then it must wait, and no event may be blamed."""
    return fault_of(error) in (Fault.MOMENT, Fault.INSTALLATION)
