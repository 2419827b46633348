"""Up to where a projection that is fed by the store has applied its events: a row per shard."""

from dataclasses import dataclass
from pathlib import Path

from psycopg import Connection

from domain.errors import CounterfoilError
from infrastructure.migrate import Migrations

MIGRATIONS = Migrations("store_feed", Path(__file__).parent / "store_feed_migrations")
"""The table of the positions, which every projection that is fed by the store needs."""

BEGIN = """
    INSERT INTO projection_positions (projection, shard, shards, version, position)
    SELECT %(projection)s, 0, 1, %(version)s, 0
    WHERE NOT EXISTS (SELECT FROM projection_positions WHERE projection = %(projection)s)
    ON CONFLICT DO NOTHING
"""

READ = """
    SELECT projection, shard, shards, version, position, anchor
    FROM projection_positions WHERE projection = %s ORDER BY shard
"""

LOCK = """
    SELECT projection, shard, shards, version, position, anchor
    FROM projection_positions WHERE projection = %s ORDER BY shard FOR UPDATE
"""

MOVE = """
    UPDATE projection_positions
    SET position = %(to)s, anchor = %(anchor)s, moved_at = clock_timestamp(), beat_at = clock_timestamp(),
        held_position = NULL, held_event_id = NULL, held_reason = NULL, held_since = NULL
    WHERE projection = %(projection)s AND shard = %(shard)s AND shards = %(shards)s AND version = %(version)s
      AND position = %(position)s
"""

BEAT = """
    UPDATE projection_positions SET beat_at = clock_timestamp()
    WHERE projection = %(projection)s AND shard = %(shard)s AND shards = %(shards)s
"""

HOLD = """
    UPDATE projection_positions
    SET beat_at = clock_timestamp(), held_position = %(held)s, held_event_id = %(event_id)s, held_reason = %(reason)s,
        held_since = CASE WHEN held_position = %(held)s THEN held_since ELSE clock_timestamp() END
    WHERE projection = %(projection)s AND shard = %(shard)s AND shards = %(shards)s AND position = %(position)s
"""

LAG = """
    SELECT greatest(0, coalesce((SELECT max(position) FROM stored_events), 0) - %(position)s),
           coalesce((SELECT extract(epoch FROM clock_timestamp() - stored_at)::float8
                     FROM stored_events WHERE position > %(position)s ORDER BY position LIMIT 1), 0)
"""

REMOVE = "DELETE FROM projection_positions WHERE projection = %s"

BEGIN_AT = """
    INSERT INTO projection_positions (projection, shard, shards, version, position, anchor)
    SELECT %(projection)s, shard, %(shards)s, %(version)s, %(position)s, %(anchor)s
    FROM generate_series(0, %(shards)s - 1) AS shard
"""


@dataclass(eq=False)
class PlaceLost(CounterfoilError):
    """The row is not as this runner left it: another one has moved it, or a rebuild or new shards have replaced it.

    What to do: roll back, and read the row again.
    """

    projection: str
    shard: int

    def __str__(self) -> str:
        return f"Another has moved shard {self.shard} of {self.projection!r}. Nothing was applied; read it again."


@dataclass(frozen=True)
class Place:
    """One shard's row. position: of the last event that is applied, or is another shard's.

    version: of the projection whose rows these are. anchor: fingerprint of the event at `position`, None at the
    beginning and after somebody has moved it by hand.
    """

    projection: str
    shard: int
    shards: int
    version: int
    position: int = 0
    anchor: bytes | None = None


def begin(connection: Connection, projection: str, version: int) -> None:
    """Makes the row of a projection that has never run: one shard, at position 0."""
    connection.execute(BEGIN, {"projection": projection, "version": version})


def read(connection: Connection, projection: str) -> list[Place]:
    """All shards, in order; none when it has never run."""
    return [Place(*row) for row in connection.execute(READ, (projection,), prepare=True)]


def lock(tx: Connection, projection: str) -> list[Place]:
    """As `read`; until the transaction ends no runner applies anything, and then it notices what was changed."""
    return [Place(*row) for row in tx.execute(LOCK, (projection,))]


def move(tx: Connection, place: Place, to: int, anchor: bytes) -> Place:
    """Moves the shard from the place that was read. To be called first in the transaction of the effects.

    Guarantees: of all who try to move the same place one succeeds, and the others wait for it here and then
    raise PlaceLost, as when the shards or the version have changed meanwhile. So an effect that comes after
    this in the same transaction is applied once, and only by code of the version that the rows are of.
    """
    if tx.execute(MOVE, vars(place) | {"to": to, "anchor": anchor}, prepare=True).rowcount != 1:
        raise PlaceLost(place.projection, place.shard)
    return Place(place.projection, place.shard, place.shards, place.version, to, anchor)


def beat(connection: Connection, place: Place) -> bool:
    """A sign of life while there is nothing to move. False when the row was replaced."""
    return connection.execute(BEAT, vars(place)).rowcount == 1


def lag(connection: Connection, position: int) -> tuple[int, float]:
    """How many positions are stored above this one, and for how many seconds the first of them has been there."""
    row = connection.execute(LAG, {"position": position}, prepare=True).fetchone()
    return (int(row[0]), float(row[1])) if row else (0, 0.0)


def hold(connection: Connection, place: Place, position: int, event_id: str | None, reason: str) -> bool:
    """Records that the event at `position` cannot be passed, and why: no payload. `move` ends it.

    False when the row is not at that place any more.
    """
    values = vars(place) | {"held": position, "event_id": event_id, "reason": reason}
    return connection.execute(HOLD, values).rowcount == 1


def replace(tx: Connection, projection: str, shards: int, version: int, position: int, anchor: bytes | None) -> None:
    """Puts new shards, all at one place, where the old ones were. Call `lock` before, in the same transaction."""
    tx.execute(REMOVE, (projection,))
    values = {"projection": projection, "shards": shards, "version": version, "position": position, "anchor": anchor}
    tx.execute(BEGIN_AT, values)
