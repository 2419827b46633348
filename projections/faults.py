"""Whose fault it is when a batch fails: it decides whether to wait or to look for the event at fault."""

import psycopg

from infrastructure.postgres import is_transient

_OF_THE_INSTALLATION = ("28", "3D", "3F", "42501", "42P01", "42703")
"""SQLSTATEs of log-in, database, schema, grants, tables and columns: any event would fail, and none has to answer
for it. Somebody has to repair the installation; until then the events wait."""


class StopAsked(Exception):
    """The process was told to stop; the batch is rolled back."""


class TooSlow(Exception):
    """The batch takes too long; it is rolled back, to be done in smaller parts."""


def is_no_event_at_fault(error: BaseException) -> bool:
    """Whether the same batch may be applied later as it is: then it must wait, and no event may be blamed."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_OF_THE_INSTALLATION):
        return True
    return isinstance(error, StopAsked | TooSlow) or is_transient(error)
