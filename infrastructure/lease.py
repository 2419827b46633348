"""Who may publish for a relay: one owner at a time, by the database's clock.

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
    epoch: int

    def __str__(self) -> str:
        return f"The lease {self.epoch} of relay {self.relay!r} is lost. Stop publishing and acquire it again."


ACQUIRE = """
    INSERT INTO relay_checkpoints AS mine (relay, position, epoch, owner, lease_expires_at, beat_at)
    VALUES (%(relay)s, 0, 1, %(owner)s, clock_timestamp() + %(seconds)s * interval '1 s', clock_timestamp())
    ON CONFLICT (relay) DO UPDATE
        SET epoch = mine.epoch + 1, owner = excluded.owner, lease_expires_at = excluded.lease_expires_at,
            beat_at = excluded.beat_at
        WHERE mine.owner IS NULL OR mine.lease_expires_at < clock_timestamp()
    RETURNING epoch, position
"""

RENEW = """
    UPDATE relay_checkpoints
    SET lease_expires_at = clock_timestamp() + %(seconds)s * interval '1 s', beat_at = clock_timestamp()
    WHERE relay = %(relay)s AND epoch = %(epoch)s AND owner = %(owner)s
    RETURNING position
"""

RELEASE = """
    UPDATE relay_checkpoints SET owner = NULL, lease_expires_at = NULL, beat_at = clock_timestamp()
    WHERE relay = %(relay)s AND epoch = %(epoch)s AND owner = %(owner)s
"""


class Lease:
    """One acquisition. It is kept over a reconnect: each method takes the connection to use (autocommit).

    Guarantees: at most one acquisition of a relay is the current one, and whatever an older one writes is
    refused. Not guaranteed: that an older one does not still publish; so ask `is_provable` before each send.
    """

    def __init__(self, relay: str, owner: str, epoch: int, seconds: float, asked_at: float) -> None:
        self.relay, self.owner, self.epoch, self.seconds = relay, owner, epoch, seconds
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
        logger.warning("lease lost", extra={"relay": self.relay, "epoch": self.epoch, "owner": self.owner})
        return LeaseLost(self.relay, self.epoch)

    @property
    def fields(self) -> dict[str, str | int | float]:
        """What the statements of lease and checkpoint are fenced by."""
        return {"relay": self.relay, "owner": self.owner, "epoch": self.epoch, "seconds": self.seconds}


def acquire(connection: Connection, relay: str, seconds: float) -> tuple[Lease, int] | None:
    """The lease and the position to go on from, or None while another owner's lease runs.

    seconds: how long it lasts unless it is renewed. A relay seen for the first time begins at position 0.
    """
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
    asked_at = monotonic()
    row = connection.execute(ACQUIRE, {"relay": relay, "owner": owner, "seconds": seconds}).fetchone()
    if row is None:
        return None
    epoch, position = row
    return Lease(relay, owner, epoch, seconds, asked_at), position
