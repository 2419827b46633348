"""What an operator does to a relay: pause, resume, move it back; and the way to any change while nobody publishes.

Moving back and resharding need a moment in which nobody publishes. So the relay is asked to stand aside for
a few seconds at a time, the leases are waited for, and then all rows are changed in one transaction that finds
them locked and free. Whoever is killed in between leaves the old rows behind, and the request runs out by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import TypeVar

import psycopg

from domain.errors import CounterfoilError
from infrastructure.postgres import Connection
from infrastructure.publisher import Mark

Changed = TypeVar("Changed")

_ASIDE = 10.0
"""Seconds for which the relay stands aside after each request; what is left over if we are killed."""
_LOOK_EVERY = 0.2


@dataclass(eq=False)
class UnknownRelay(CounterfoilError):
    """What to do: check the name; `counterfoil status` lists them."""

    relay: str

    def __str__(self) -> str:
        return f"No relay {self.relay!r} has ever run on this store."


@dataclass(eq=False)
class ChangeUnderWay(CounterfoilError):
    """Somebody else changes this relay at this moment. Nothing was done; try again when that has ended."""

    relay: str

    def __str__(self) -> str:
        return f"Another command changes the relay {self.relay!r} now. Try again when it has ended."


@dataclass(eq=False)
class StillPublishing(CounterfoilError):
    """Some shards were not let go in time. What to do: see whether the processes that own them hang, and end them."""

    relay: str
    owners: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        names = ", ".join(self.owners)
        return f"The relay {self.relay!r} was not let go within {self.seconds:g} s by {names}. Look after that process."


@dataclass(eq=False)
class NotBack(CounterfoilError):
    """A rewind to a position that no shard has reached: it would pass events without publishing them."""

    relay: str
    position: int
    reached: int

    def __str__(self) -> str:
        return (
            f"The relay {self.relay!r} has reached {self.reached}: {self.position} is not back. Give a lower position."
        )


@dataclass(frozen=True)
class ShardRow:
    """As it is locked: the rest of a row is of no interest to a change."""

    shard: int
    position: int
    anchor: bytes | None
    epoch: int
    generation: int
    owner: str | None
    paused: bool
    delivery: str | None

    @property
    def mark(self) -> Mark:
        return Mark(self.position, self.generation, self.anchor)


ONLY_ONE = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
_KEY = 0x72656C61

PAUSE = """
    UPDATE relay_checkpoints
    SET paused_since = CASE WHEN paused_until > clock_timestamp() THEN paused_since ELSE clock_timestamp() END,
        paused_until = greatest(paused_until, clock_timestamp() + %(seconds)s * interval '1 s')
    WHERE relay = %(relay)s
"""

PAUSE_FOR_GOOD = """
    UPDATE relay_checkpoints
    SET paused_since = CASE WHEN paused_until = 'infinity' THEN paused_since ELSE clock_timestamp() END,
        paused_until = 'infinity'
    WHERE relay = %s
"""

RESUME = "UPDATE relay_checkpoints SET paused_since = NULL, paused_until = NULL WHERE relay = %s"

END_STANDING_ASIDE = RESUME + " AND paused_until < 'infinity'"

# The next epoch: who slept through its lease could extend it otherwise, as long as nobody has succeeded it.
END_LAPSED_LEASES = """
    UPDATE relay_checkpoints SET epoch = epoch + 1, owner = NULL, lease_expires_at = NULL
    WHERE relay = %s AND lease_expires_at < clock_timestamp()
"""

OWNERS = "SELECT owner FROM relay_checkpoints WHERE relay = %s AND owner IS NOT NULL ORDER BY shard"

# FOR UPDATE: no lease is taken or renewed until this transaction has ended, and then the rows say something else.
LOCK_SHARDS = """
    SELECT shard, position, anchor, epoch, generation,
           CASE WHEN lease_expires_at > clock_timestamp() THEN owner END,
           coalesce(paused_until = 'infinity', false), delivery
    FROM relay_checkpoints WHERE relay = %s ORDER BY shard FOR UPDATE
"""

MOVE_BACK = """
    UPDATE relay_checkpoints
    SET position = %(to)s, anchor = NULL, epoch = epoch + 1, generation = generation + 1,
        owner = NULL, lease_expires_at = NULL
    WHERE relay = %(relay)s AND position >= %(to)s
"""


def pause(connection: Connection, relay: str, patience: float, stop: Event) -> bool:
    """Nobody publishes for the relay until `resume`, whatever is restarted meanwhile.

    True when all shards were let go within `patience` seconds; False when it was told to stop waiting before.
    Raises UnknownRelay, and StillPublishing: the relay is paused then, and somebody has not heeded it yet.
    """
    if connection.execute(PAUSE_FOR_GOOD, (relay,)).rowcount == 0:
        raise UnknownRelay(relay)
    until = monotonic() + patience
    while owners := _owners(connection, relay):
        if monotonic() > until:
            raise StillPublishing(relay, owners, patience)
        if stop.wait(_LOOK_EVERY):
            return False
    return True


def resume(connection: Connection, relay: str) -> None:
    """It goes on where it stood. Nothing happens to one that is not paused. Raises UnknownRelay."""
    if connection.execute(RESUME, (relay,)).rowcount == 0:
        raise UnknownRelay(relay)


def rewind(connection: Connection, relay: str, to: int, patience: float, stop: Event) -> list[ShardRow]:
    """Moves each shard that is beyond `to` back there, so that what follows is published again, under its old ids.

    Returns the rows of those shards as they were. A relay that was paused stays so; any other goes on by itself.
    Also ends the alarm of a store that was set back. One transaction: all of it or nothing.
    Raises UnknownRelay, NotBack, ChangeUnderWay and StillPublishing, and then nothing was changed.
    """

    def change(rows: Sequence[ShardRow]) -> list[ShardRow]:
        reached = max(row.position for row in rows)
        if to > reached:
            raise NotBack(relay, to, reached)
        connection.execute(MOVE_BACK, {"relay": relay, "to": to})
        return [row for row in rows if row.position >= to]

    with changing(connection, relay):
        return once_free(connection, relay, change, monotonic() + patience, patience, stop)


def locked(tx: Connection, relay: str) -> list[ShardRow]:
    """By number, until the transaction ends."""
    return [ShardRow(*row) for row in tx.execute(LOCK_SHARDS, (relay,))]


def stand_aside(connection: Connection, relay: str) -> None:
    """For so many seconds from now nobody takes a lease, and who has one lets go of it."""
    connection.execute(PAUSE, {"relay": relay, "seconds": _ASIDE})


def once_free(
    connection: Connection,
    relay: str,
    change: Callable[[Sequence[ShardRow]], Changed],
    until: float,
    patience: float,
    stop: Event,
) -> Changed:
    """Asks the relay to stand aside until all its rows are free, and changes them in the transaction that sees it.

    until: by time.monotonic, `patience` seconds from the beginning. Raises UnknownRelay and StillPublishing.
    """
    while True:
        stand_aside(connection, relay)
        with connection.transaction():
            rows = locked(connection, relay)
            owners = tuple(row.owner for row in rows if row.owner)
            if not rows:
                raise UnknownRelay(relay)
            if not owners:
                return change(rows)
        if stop.wait(_LOOK_EVERY) or monotonic() > until:
            raise StillPublishing(relay, owners, patience)


@contextmanager
def changing(connection: Connection, relay: str) -> Iterator[None]:
    """Nobody else changes the relay meanwhile, and at the end it goes on. Raises ChangeUnderWay."""
    with _alone(connection, relay), _standing_aside_ends(connection, relay):
        yield


@contextmanager
def _alone(connection: Connection, relay: str) -> Iterator[None]:
    """The lock is the session's: it is gone with us, however we end."""
    if connection.execute(ONLY_ONE, (_KEY, relay)).fetchone() != (True,):
        raise ChangeUnderWay(relay)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # what went wrong before is of more interest
            connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", (_KEY, relay))


@contextmanager
def _standing_aside_ends(connection: Connection, relay: str) -> Iterator[None]:
    """At once, however the change ended; but a relay that an operator has paused stays paused."""
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # it runs out by itself
            connection.execute(END_STANDING_ASIDE, (relay,))


def _owners(connection: Connection, relay: str) -> tuple[str, ...]:
    """Who may publish still: with a lease that runs. One that has run out cannot be extended after this."""
    connection.execute(END_LAPSED_LEASES, (relay,))
    return tuple(owner for (owner,) in connection.execute(OWNERS, (relay,)))
