"""The processes of a relay that are alive, those that stand by among them, and what each has a right to.

There is no leader. Each process sees the same rows, counts the same way, takes no more than its share and lets
go of what it has too much. What decides who publishes is the lease alone; here is only decided who asks for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infrastructure.postgres import Connection

BEAT = """
    INSERT INTO relay_processes (relay, process, expires_at)
    VALUES (%(relay)s, %(process)s, clock_timestamp() + %(seconds)s * interval '1 s')
    ON CONFLICT (relay, process) DO UPDATE SET expires_at = excluded.expires_at
"""

LEAVE = "DELETE FROM relay_processes WHERE relay = %s AND process = %s"

FORGET_THE_DEAD = "DELETE FROM relay_processes WHERE relay = %s AND expires_at < clock_timestamp() - interval '1 hour'"

ALIVE = """
    SELECT process FROM relay_processes
    WHERE relay = %s AND expires_at > clock_timestamp() ORDER BY joined_at, process
"""

SHARDS = """
    SELECT shard, shards, coalesce(lease_expires_at > clock_timestamp(), false), owner,
           coalesce(paused_until > clock_timestamp(), false)
    FROM relay_checkpoints WHERE relay = %s ORDER BY shard
"""


@dataclass(frozen=True)
class Seat:
    """One shard of a relay. holder: the process whose lease runs, None when it is free. paused: nobody may take it."""

    shard: int
    shards: int
    holder: str | None
    paused: bool


@dataclass(frozen=True)
class Table:
    """What one look showed. seats: by number; none before the relay has ever run. alive: in the order of joining."""

    seats: tuple[Seat, ...]
    alive: tuple[str, ...]

    @property
    def paused(self) -> bool:
        return any(seat.paused for seat in self.seats)

    def share_of(self, process: str) -> int:
        """How many shards it should have."""
        holding = dict.fromkeys((*self.alive, process), 0)
        for seat in self.seats:
            if seat.holder in holding:
                holding[seat.holder] += 1
        return fair_shares(holding, len(self.seats))[process]


def fair_shares(holding: Mapping[str, int], shards: int) -> dict[str, int]:
    """How many of the shards each process should have: as many as any other, or one more.

    holding: how many each has now, in the order of joining. Who has more already gets the one more, and among
    equals who came first: so nothing moves but what must.
    """
    ranked = sorted(holding, key=lambda process: -holding[process])
    each, left_over = divmod(shards, len(ranked))
    return {process: each + (rank < left_over) for rank, process in enumerate(ranked)}


def show_up(connection: Connection, relay: str, process: str, seconds: float) -> None:
    """This process counts for so many seconds."""
    connection.execute(BEAT, {"relay": relay, "process": process, "seconds": seconds})


def leave(connection: Connection, relay: str, process: str) -> None:
    """It counts no more from now on. Rows of processes that died long ago go with it."""
    connection.execute(LEAVE, (relay, process))
    connection.execute(FORGET_THE_DEAD, (relay,))


def look(connection: Connection, relay: str) -> Table:
    seats = tuple(
        Seat(shard, shards, owner.rpartition(":")[0] if leased else None, paused)
        for shard, shards, leased, owner, paused in connection.execute(SHARDS, (relay,))
    )
    return Table(seats, tuple(process for (process,) in connection.execute(ALIVE, (relay,))))
