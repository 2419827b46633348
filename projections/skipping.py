"""The decision that a projection fed by the store does without an event. It is kept as a record, with the reason."""

import logging
from dataclasses import dataclass

from domain.errors import CounterfoilError
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader
from infrastructure.postgres import Connection
from projections.quarantine import storable

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class NotHeld(CounterfoilError):
    """The projection is not held at that event, and nothing was changed. held: the positions at which its shards are.

    What to do: look at `counterfoil status`; only the event that holds a shard can be skipped.
    """

    projection: str
    position: int
    held: tuple[int, ...]

    def __str__(self) -> str:
        where = f"it is at {', '.join(map(str, self.held))}" if self.held else "nothing holds it"
        return f"{self.projection!r} is not held at position {self.position}: {where}. Nothing was changed."


@dataclass(frozen=True)
class Skipped:
    """held_reason: why the projection could not pass the event."""

    position: int
    shard: int
    event_id: str | None
    held_reason: str


HELD = "SELECT held_position FROM projection_positions WHERE projection = %s AND held_position IS NOT NULL ORDER BY 1"

# The runner moves its row in the transaction of the effects: whoever of us two comes first, the other finds the row
# somewhere else and changes nothing.
GO_BEHIND = """
    WITH held AS (
        SELECT shard, held_event_id, held_reason FROM projection_positions
        WHERE projection = %(projection)s AND held_position = %(position)s FOR UPDATE
    )
    UPDATE projection_positions AS row
    SET position = held_position, anchor = %(anchor)s, moved_at = clock_timestamp(),
        held_position = NULL, held_event_id = NULL, held_reason = NULL, held_since = NULL
    FROM held WHERE row.projection = %(projection)s AND row.shard = held.shard
    RETURNING row.shard, row.version, held.held_event_id, held.held_reason
"""

RECORD = """
    INSERT INTO skipped_events (projection, version, shard, position, event_id, held_reason, reason, skipped_by)
    VALUES (%(projection)s, %(version)s, %(shard)s, %(position)s, %(event_id)s, %(held_reason)s, %(reason)s, %(by)s)
"""


def skip(connection: Connection, projection: str, position: int, reason: str, by: str) -> Skipped:
    """Lets the projection go on behind the event that holds it. Its runner notices by itself, within half a minute.

    reason, by: kept with it. One transaction: the new position and the record, or nothing. Raises NotHeld.
    """
    event = EventReader(connection).read(position, 1).anchor
    with connection.transaction():
        values = {"projection": projection, "position": position, "anchor": event and fingerprint(event)}
        row = connection.execute(GO_BEHIND, values).fetchone() if event else None
        if row is None:
            raise NotHeld(projection, position, _held(connection, projection))
        shard, version, event_id, held_reason = row
        told = {"shard": shard, "version": version, "event_id": event_id, "held_reason": held_reason}
        connection.execute(RECORD, values | told | {"reason": storable(reason), "by": storable(by)})
    about = {"projection": projection, "shard": shard, "position": position, "event_id": event_id}
    logger.warning("an event is skipped for good", extra=about)
    return Skipped(position, shard, event_id, held_reason)


def _held(tx: Connection, projection: str) -> tuple[int, ...]:
    return tuple(position for (position,) in tx.execute(HELD, (projection,)))
