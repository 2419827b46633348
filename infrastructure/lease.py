"""Who may publish for a shard of a relay: one owner at a time, by the database's clock.

Each acquisition has an owner name of its own and an epoch one higher than the last, so that a process that
slept through its lease is not mistaken for its successor, and its writes are refused.
"""

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from time import monotonic

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.postgres import Connection

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class LeaseLost(CounterfoilError):
    """Another acquisition has taken over, or the checkpoint is not where this one left it. Nothing was written.

    What to do: stop publishing at once, drop what is under way, and acquire again.
    """

    relay: str
    shard: int
    epoch: int

    def __str__(self) -> str:
        return (
            f"The lease {self.epoch} of shard {self.shard} of relay {self.relay!r} is lost. "
            "Stop publishing and acquire it again."
        )


REGISTER = """
    INSERT INTO relay_checkpoints (relay, shard, shards, position, epoch, beat_at)
    SELECT %(relay)s, 0, 1, 0, 0, clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM relay_checkpoints WHERE relay = %(relay)s)
    ON CONFLICT DO NOTHING
"""

ACQUIRE = """
    UPDATE relay_checkpoints
    SET epoch = epoch + 1, owner = %(owner)s, beat_at = clock_timestamp(), delivery = %(delivery)s,
        lease_expires_at = clock_timestamp() + %(seconds)s * interval '1 s'
    WHERE relay = %(relay)s AND shard = %(shard)s AND shards = %(shards)s
      AND (owner IS NULL OR lease_expires_at < clock_timestamp())
      AND (paused_until IS NULL OR paused_until < clock_timestamp())
    RETURNING epoch, position, generation
"""

RENEW = """
    UPDATE relay_checkpoints
    SET lease_expires_at = clock_timestamp() + %(seconds)s * interval '1 s', beat_at = clock_timestamp()
    WHERE relay = %(relay)s AND shard = %(shard)s AND epoch = %(epoch)s AND owner = %(owner)s
    RETURNING position
"""

RELEASE = """
    UPDATE relay_checkpoints SET owner = NULL, lease_expires_at = NULL, beat_at = clock_timestamp()
    WHERE relay = %(relay)s AND shard = %(shard)s AND epoch = %(epoch)s AND owner = %(owner)s
"""


@dataclass(frozen=True)
class Shard:
    """One of the `shards` of a relay: number 0 ... shards - 1."""

    relay: str
    number: int = 0
    shards: int = 1


class Lease:
    """One acquisition. It is kept over a reconnect: each method takes the connection to use (autocommit).

    Guarantees: at most one acquisition of a shard is the current one, and whatever an older one writes is
    refused. Not guaranteed: that an older one does not still publish; so ask `is_provable` before each send.
    While a lease runs, neither the number of shards nor the generation changes.
    """

    def __init__(self, shard: Shard, owner: str, epoch: int, generation: int, seconds: float, asked_at: float) -> None:
        """generation: how often an operator has moved the position back or changed the shards."""
        self.shard, self.relay = shard, shard.relay
        self.owner, self.epoch, self.generation, self.seconds = owner, epoch, generation, seconds
        self._provable_until = asked_at + seconds

    @property
    def is_provable(self) -> bool:
        """Whether the database cannot have let anyone else in yet, as far as this process's clock tells.

        Counted from before the last renewal was sent, so it errs on the safe side. No round trip.
        """
        return monotonic() < self._provable_until

    def renew(self, connection: Connection) -> int:
        """Extends the lease; returns the stored position, which tells what became of a lost reply.

        A lease that had run out without a successor is extended as well. Raises LeaseLost.
        """
        asked_at = monotonic()
        row = connection.execute(RENEW, self.fields).fetchone()
        if row is None:
            raise self.lost()
        self.renewed(asked_at)
        return int(row[0])

    def release(self, connection: Connection) -> None:
        """Lets the next one in at once. Does nothing when the lease was lost."""
        self._provable_until = 0.0
        connection.execute(RELEASE, self.fields)

    def renewed(self, asked_at: float) -> None:
        """A statement that was sent at `asked_at` (time.monotonic) has extended the lease."""
        self._provable_until = asked_at + self.seconds

    def lost(self) -> LeaseLost:
        """Counts and logs the loss; returns the error to raise."""
        self._provable_until = 0.0
        metrics.RELAY_LEASES_LOST.labels(self.relay).inc()
        shard = self.shard.number
        fields = {"relay": self.relay, "shard": shard, "epoch": self.epoch, "owner": self.owner}
        logger.warning("lease lost", extra=fields)
        return LeaseLost(self.relay, shard, self.epoch)

    @property
    def fields(self) -> dict[str, str | int | float]:
        """What the statements of lease and checkpoint are fenced by."""
        return {
            "relay": self.relay,
            "shard": self.shard.number,
            "owner": self.owner,
            "epoch": self.epoch,
            "seconds": self.seconds,
        }


def new_process() -> str:
    """A name of its own for this process, or for a part of it that takes leases: host, process id, random."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def register(connection: Connection, relay: str) -> bool:
    """Gives a relay that was never seen before one shard at position 0; True when it was new."""
    return connection.execute(REGISTER, {"relay": relay}).rowcount > 0


def acquire(
    connection: Connection,
    shard: Shard | str,
    seconds: float,
    process: str | None = None,
    delivery: str = "at-least-once",
) -> tuple[Lease, int] | None:
    """The lease and the position to go on from. None while another owner's lease runs, while the relay is
    paused, and when the relay has another number of shards by now.

    shard: a relay's name alone means its one shard. seconds: how long it lasts unless it is renewed.
    process: who asks. delivery: how it will publish, as the setting names it; kept for whoever changes the shards.
    A relay that is seen for the first time gets one shard, at position 0.
    """
    shard = Shard(shard) if isinstance(shard, str) else shard
    owner = f"{process or new_process()}:{secrets.token_hex(4)}"
    values = {
        "relay": shard.relay,
        "shard": shard.number,
        "shards": shard.shards,
        "owner": owner,
        "seconds": seconds,
        "delivery": delivery,
    }
    asked_at = monotonic()
    row = connection.execute(ACQUIRE, values).fetchone()
    if row is None and register(connection, shard.relay):
        row = connection.execute(ACQUIRE, values).fetchone()
    if row is None:
        return None
    epoch, position, generation = row
    return Lease(shard, owner, epoch, generation, seconds, asked_at), position
