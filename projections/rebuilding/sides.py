"""The two sides of a rebuild, live and other tables, as they are brought to hold the same events."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from psycopg import Connection

from projections.rebuilding.fill import Filler

FOR_WRITERS = 5.0
"""Seconds to wait for the writers of the moment to end their transactions; new ones queue meanwhile."""


@dataclass(frozen=True)
class Left:
    """What the tables hold that are not live any more: the events of each shard up to its position, and those ahead.

    returnable: False when it is not known which of the earlier ones they lack. complete: False when the tables that
    take their place may hold an event that these do not, so that its effects were never asked for.
    """

    positions: Sequence[int]
    ahead: Sequence[str] = ()
    returnable: bool = True
    complete: bool = True


class Sides(Protocol):
    """How the live tables get their events decides how to tell what they hold."""

    def waiting(self, connection: Connection, reached: int, /) -> int:
        """How many events the other tables hold that the live ones do not (yet), as far as that is counted.

        reached: the highest position that the other tables have come to. Never those that wait in the live quarantine.
        To be called from time to time while no filler works; `meet` then looks only at what has come since."""

    def fenced(self, connection: Connection) -> AbstractContextManager[None]:
        """Before the transaction of the swap and around it, where the source is asked meanwhile: no writer comes in.

        connection: the one of the transaction. May fail with a lock timeout. Raises TooFarApart, and what keeps the
        source from being read.
        """

    def fence(self, tx: Connection) -> None:
        """From now on nobody writes into the live tables until `tx` ends. May fail with a lock timeout."""

    def meet(self, tx: Connection, filler: Filler, positions: Sequence[int], /) -> Left:
        """Behind the fence: brings the other tables to hold all that the live ones do. Raises TooFarApart.

        positions: of the other tables, by row. The search path of `tx` means the other tables.
        """

    def hand_over(self, tx: Connection, version: int) -> None:
        """What says which events the live tables hold, says it of the other ones from now on; only code of this
        version may write. The search path of `tx` means the live tables."""

    def live_version(self, tx: Connection) -> int:
        """Of the code that the live tables belong to; the search path of `tx` means them."""
