"""What `counterfoil quarantine` asks of either side: events that could not leave, or could not be applied."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from threading import Event
from typing import Protocol

from domain.errors import CounterfoilError


@dataclass(eq=False)
class NoSuchEntry(CounterfoilError):
    """What to do: look at `counterfoil quarantine list MODULE --closed` for the entries there are."""

    module: str
    entry_id: int

    def __str__(self) -> str:
        return f"{self.module} has no entry {self.entry_id} in quarantine. See `counterfoil quarantine list`."


@dataclass(eq=False)
class EntryIsClosed(CounterfoilError):
    """The entry was released or discarded before; nothing was changed. What to do: nothing, or look at it."""

    module: str
    entry_id: int
    state: str

    def __str__(self) -> str:
        return f"The entry {self.entry_id} of {self.module} is {self.state} already; nothing was changed."


class Kind(StrEnum):
    CULPRIT = "culprit"
    """It cannot pass itself."""
    FOLLOWER = "follower"
    """Nothing is wrong with it: it waits behind an earlier event of its key."""


class EntryState(StrEnum):
    PARKED = "parked"
    ASKED = "asked"
    """Parked, and somebody has asked for another attempt."""
    RELEASED = "released"
    """It went on after all: published, or applied."""
    DISCARDED = "discarded"
    """It never goes on; the reason is kept with it."""


@dataclass(frozen=True)
class Entry:
    """One event in quarantine. Never a payload.

    id: ascending in the order in which entries were made. key: what it keeps its order within, as text that `redrive`
    takes. place: where the event is, for people. reason: names fields and rules, never a value. attempts: how often
    it was redriven and failed again. closed_at, closed_by, closed_reason: of the discard; of a release only the time.
    """

    id: int
    key: str
    kind: Kind
    state: EntryState
    category: str
    reason: str
    event_id: str | None
    place: str
    attempts: int
    quarantined_at: datetime
    closed_at: datetime | None = None
    closed_by: str | None = None
    closed_reason: str | None = None


@dataclass(frozen=True)
class DetailedEntry:
    """details: whatever else the side knows of it, by name, still without the payload. payload: the event's own bytes,
    shown only to a person who asks for them; None when there are none."""

    entry: Entry
    details: Mapping[str, object]
    payload: bytes | None = None


@dataclass(frozen=True)
class Redriven:
    """What became of a redrive, as far as it was waited for.

    keys: for how many keys it was asked. released: entries that went on. left: entries still parked. failed: the
    culprits that failed again, a few of them at most. pending: keys whose turn has not come; it stays asked for and
    happens later.
    """

    keys: int
    released: int
    left: int
    pending: int = 0
    failed: tuple[Entry, ...] = field(default=())


class QuarantineSide(Protocol):
    """The quarantine of one module, on a connection that `close` ends. psycopg's errors come through unchanged.

    Made by `open_outgoing("domain.orders")` in quarantine_outgoing.py and `open_incoming("projections.inventory")`
    in quarantine_incoming.py.
    """

    def list(self, *, key: str | None, closed: bool, limit: int) -> builtins.list[Entry]:
        """In the order of their ids, `limit` at most; of one key if named; released and discarded ones too if asked."""

    def show(self, entry_id: int) -> DetailedEntry:
        """Raises NoSuchEntry."""

    def redrive(self, key: str | None, *, wait: float, stop: Event) -> Redriven:
        """Another attempt at what is parked of this key, or of every key (None), in order; a key ends at the first
        that fails again. Waits for at most `wait` seconds where another process does it."""

    def discard(self, entry_id: int, reason: str, by: str) -> Entry:
        """Never to go on; kept as a record with the reason and by whom. The rest of its key goes on with the next
        redrive. Raises NoSuchEntry, EntryIsClosed."""

    def close(self) -> None: ...
