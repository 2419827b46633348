"""Whether a projection that is fed by the store drains, judged from outside: the store's head against its positions."""

from contextlib import closing
from dataclasses import dataclass

from eventsourcing.persistence import StoredEvent
from psycopg.errors import UndefinedTable

from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import HIGHEST_POSITION
from infrastructure.health import LONGEST_SILENCE
from infrastructure.postgres import Connection, connect
from infrastructure.settings import Settings
from projections.base import Projection
from projections.health import ProjectionHealth, projection_health
from projections.loading import Feed, LoadedProjection

PLACES = """
    SELECT shard, shards, version, position, anchor, extract(epoch FROM clock_timestamp() - beat_at)::float8,
           held_position, held_event_id, held_reason
    FROM projection_positions WHERE projection = %s ORDER BY shard
"""
APPLIED_LAST = "SELECT originator_id, originator_version, topic, state FROM stored_events WHERE position = %s"
OLDEST_AFTER = """
    SELECT extract(epoch FROM clock_timestamp() - stored_at)::float8
    FROM stored_events WHERE position > %s ORDER BY position LIMIT 1
"""


@dataclass(frozen=True)
class _Shard:
    shard: int
    shards: int
    version: int
    position: int
    anchor: bytes | None
    beat_age: float
    held_position: int | None
    held_event_id: str | None
    held_reason: str | None


def health_of(settings: Settings, loaded: LoadedProjection) -> ProjectionHealth:
    """By whichever feed it has. Raises SettingsError without a connection string, psycopg.Error without an answer."""
    if loaded.feed is Feed.STORE:
        return store_health(loaded.name, loaded.dsn(), loaded.projection)
    return projection_health(settings, loaded.name, loaded.dsn(), loaded.projection)


def store_health(name: str, dsn: str, projection: Projection) -> ProjectionHealth:
    """lag: positions between the shard that is furthest behind and the store's head. Nothing is ever in quarantine."""
    with closing(connect(dsn, application_name="counterfoil status")) as connection:
        try:
            rows = connection.execute(PLACES, (projection.consumer_name,)).fetchall()
        except UndefinedTable:
            return ProjectionHealth(name, None, None, 0, ("its tables are missing: run `counterfoil db migrate`",))
        shards = [_Shard(*row) for row in rows]
        highest = int(_number(connection, HIGHEST_POSITION) or 0)
        lowest = min((shard.position for shard in shards), default=0)
        waiting = _number(connection, OLDEST_AFTER, lowest)
        faults = [_fault(connection, shard, projection.version, highest, waiting or 0.0) for shard in shards]
    if not shards:
        faults.append("it has never run on this store: start it")
    told = tuple(dict.fromkeys(fault for fault in faults if fault))
    return ProjectionHealth(name, max(0, highest - lowest), waiting, 0, told)


def _fault(connection: Connection, shard: _Shard, version: int, highest: int, waiting: float) -> str | None:
    who = f"shard {shard.shard} of {shard.shards}: " if shard.shards > 1 else ""
    if shard.version != version:
        return f"its rows are of version {shard.version}, this code is of version {version}: rebuild it"
    if shard.beat_age > LONGEST_SILENCE:
        return f"{who}no sign of life for {shard.beat_age:.0f} s: start it"
    if _was_set_back(connection, shard, highest):
        return f"{who}the store was set back behind what was applied: rebuild it; see docs/operations.md"
    if shard.held_position is not None:
        event = f" (event {shard.held_event_id})" if shard.held_event_id else ""
        return f"{who}held before position {shard.held_position}{event}: {shard.held_reason}"
    if waiting > LONGEST_SILENCE:
        return f"an event has waited for {waiting:.0f} s: see the projection's log"
    return None


def _was_set_back(connection: Connection, shard: _Shard, highest: int) -> bool:
    """As the runner finds it (store_feed.py)."""
    if shard.anchor is None:
        return shard.position > highest
    return shard.anchor != _fingerprint_at(connection, shard.position)


def _fingerprint_at(connection: Connection, position: int) -> bytes | None:
    row = connection.execute(APPLIED_LAST, (position,)).fetchone()
    return fingerprint(StoredEvent(*row)) if row else None


def _number(connection: Connection, statement: str, *parameters: object) -> float | None:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return None if row is None else row[0]
