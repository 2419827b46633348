"""The position up to which a shard of a relay has published everything, moved only by the holder of its lease."""

from dataclasses import dataclass
from datetime import datetime
from time import monotonic

from infrastructure.lease import Lease, Shard
from infrastructure.postgres import Connection

ADVANCE = """
    UPDATE relay_checkpoints
    SET position = %(to)s, anchor = %(anchor)s,
        lease_expires_at = clock_timestamp() + %(seconds)s * interval '1 s', beat_at = clock_timestamp()
    WHERE relay = %(relay)s AND shard = %(shard)s AND epoch = %(epoch)s AND owner = %(owner)s AND position = %(from)s
    RETURNING 1
"""

ANCHOR = "SELECT anchor FROM relay_checkpoints WHERE relay = %s AND shard = %s"

READ_CHECKPOINTS = """
    SELECT relay, shard, shards, generation, position, anchor, epoch, owner,
           lease_expires_at > clock_timestamp(), beat_at,
           extract(epoch FROM clock_timestamp() - beat_at)::float8,
           coalesce(paused_until > clock_timestamp(), false), paused_since
    FROM relay_checkpoints WHERE relay = %s ORDER BY shard
"""


@dataclass(frozen=True)
class CheckpointStatus:
    """The row of a relay's shard, for people and health checks. Times are the database's; ages are seconds.

    generation: how often it was moved back or its shards were changed. anchor: fingerprint of the event at
    `position`. leased: whether its owner's lease runs. paused: whether nobody may publish for it now.
    """

    relay: str
    shard: int
    shards: int
    generation: int
    position: int
    anchor: bytes | None
    epoch: int
    owner: str | None
    leased: bool | None
    beat_at: datetime
    beat_age: float
    paused: bool
    paused_since: datetime | None


def advance(
    connection: Connection, lease: Lease, from_position: int, to_position: int, anchor: bytes | None = None
) -> None:
    """Moves the checkpoint from the position that was read to a higher one, and renews the lease with it.

    anchor: fingerprint of the event at `to_position`. One round trip.

    Guarantees: only the current acquisition moves the checkpoint, only from where it left it, never back.
    A lease that ran out without a successor still may: what it published is published. When the reply
    is lost, `lease.renew` tells where the checkpoint stands.
    Raises LeaseLost when nothing was moved, ValueError when it would move back.
    """
    if to_position < from_position:
        raise ValueError(f"a checkpoint never moves back: {from_position} to {to_position}")
    asked_at = monotonic()
    values = lease.fields | {"from": from_position, "to": to_position, "anchor": anchor}
    if connection.execute(ADVANCE, values).fetchone() is None:
        raise lease.lost()
    lease.renewed(asked_at)


def read_anchor(connection: Connection, shard: Shard) -> bytes | None:
    """None when there is nothing to compare with: at the beginning, or after an operator moved the checkpoint."""
    row = connection.execute(ANCHOR, (shard.relay, shard.number)).fetchone()
    return row[0] if row else None


def read_checkpoints(connection: Connection, relay: str) -> list[CheckpointStatus]:
    """Of all shards of the relay, by number; none for a relay that has never run."""
    return [CheckpointStatus(*row) for row in connection.execute(READ_CHECKPOINTS, (relay,))]


def read_checkpoint(connection: Connection, relay: str, shard: int = 0) -> CheckpointStatus | None:
    """None for a relay that has never run or has no such shard."""
    return next((each for each in read_checkpoints(connection, relay) if each.shard == shard), None)
