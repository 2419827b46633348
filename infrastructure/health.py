"""Whether events drain, judged from outside: the store's own head against each relay's checkpoints and beats.

A relay is not asked how it feels. It may be dead, or measure itself against a mark that froze with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eventsourcing.persistence import StoredEvent

from infrastructure.checkpoint import CheckpointStatus, read_checkpoints
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import HIGHEST_POSITION
from infrastructure.outgoing_records import count
from infrastructure.postgres import Connection
from infrastructure.relay_processes import ALIVE

LONGEST_SILENCE = 60.0
"""Seconds after which a relay without a beat, or an event that is still unpublished, is a fault."""

SET_BACK = "the store was set back behind what was published; see docs/operations.md"

RELAYS = "SELECT DISTINCT relay FROM relay_checkpoints ORDER BY relay"
PUBLISHED_LAST = "SELECT originator_id, originator_version, topic, state FROM stored_events WHERE position = %s"
OLDEST_AFTER = """
    SELECT extract(epoch FROM clock_timestamp() - stored_at)::float8
    FROM stored_events WHERE position > %s ORDER BY position LIMIT 1
"""


@dataclass(frozen=True)
class ShardHealth:
    """waiting_seconds: age of the oldest event above the checkpoint, None when there is none; it may be another
    shard's, which this one has only to pass. process: that publishes for it now, None for nobody.

    fault: what is wrong, in words, and what to do; None when all is well.
    """

    shard: int
    position: int
    waiting_seconds: float | None
    process: str | None
    beat_age: float
    fault: str | None


@dataclass(frozen=True)
class RelayHealth:
    """position: the lowest of its shards. highest: of the store. waiting_seconds, beat_age: the largest of its shards'.

    leased: whether somebody publishes for every shard. processes: that are alive, those that stand by among them.
    quarantined: events that wait for a decision, with those behind them, of so many aggregates.
    fault: of the relay, or the first of a shard's.
    """

    relay: str
    position: int
    highest: int
    waiting_seconds: float | None
    leased: bool
    paused: bool
    processes: int
    beat_age: float
    quarantined: int
    quarantined_aggregates: int
    shards: tuple[ShardHealth, ...]
    fault: str | None


def relay_health(connection: Connection) -> list[RelayHealth]:
    """Of every relay that ever ran on this store."""
    relays = [relay for (relay,) in connection.execute(RELAYS)]
    return [_relay(connection, relay, read_checkpoints(connection, relay)) for relay in relays]


def was_set_back(connection: Connection, checkpoint: CheckpointStatus) -> bool:
    """Whether the store lacks what this shard published last, or has another event in its place."""
    return _was_set_back(connection, checkpoint, _highest(connection))


def _relay(connection: Connection, relay: str, checkpoints: Sequence[CheckpointStatus]) -> RelayHealth:
    highest = _highest(connection)
    shards = tuple(_shard(connection, checkpoint, highest) for checkpoint in checkpoints)
    waiting = max((shard.waiting_seconds for shard in shards if shard.waiting_seconds is not None), default=None)
    faults = [fault if len(shards) == 1 else f"shard {n}: {fault}" for n, fault in _faults(shards)]
    quarantined, aggregates = count(connection, relay)
    if quarantined:
        faults.append(f"events are in quarantine: `counterfoil quarantine list {relay}`")
    return RelayHealth(
        relay=relay,
        position=min(shard.position for shard in shards),
        highest=highest,
        waiting_seconds=waiting,
        leased=all(shard.process for shard in shards),
        paused=any(checkpoint.paused for checkpoint in checkpoints),
        processes=len(connection.execute(ALIVE, (relay,)).fetchall()),
        beat_age=max(shard.beat_age for shard in shards),
        quarantined=quarantined,
        quarantined_aggregates=aggregates,
        shards=shards,
        fault=faults[0] if faults else None,
    )


def _faults(shards: Sequence[ShardHealth]) -> list[tuple[int, str]]:
    return [(shard.shard, shard.fault) for shard in shards if shard.fault]


def _shard(connection: Connection, checkpoint: CheckpointStatus, highest: int) -> ShardHealth:
    waiting = _number(connection, OLDEST_AFTER, checkpoint.position)
    return ShardHealth(
        shard=checkpoint.shard,
        position=checkpoint.position,
        waiting_seconds=waiting,
        process=(checkpoint.owner or "").rpartition(":")[0] if checkpoint.leased else None,
        beat_age=checkpoint.beat_age,
        fault=SET_BACK if _was_set_back(connection, checkpoint, highest) else _fault(checkpoint, waiting or 0.0),
    )


def _was_set_back(connection: Connection, checkpoint: CheckpointStatus, highest: int) -> bool:
    row = connection.execute(PUBLISHED_LAST, (checkpoint.position,)).fetchone()
    last = fingerprint(StoredEvent(*row)) if row else None
    return checkpoint.anchor not in (None, last) or checkpoint.position > highest


def _highest(connection: Connection) -> int:
    return int(_number(connection, HIGHEST_POSITION) or 0)


def _fault(checkpoint: CheckpointStatus, waiting: float) -> str | None:
    if checkpoint.paused:
        if waiting <= LONGEST_SILENCE:
            return None
        since = f"{checkpoint.paused_since:%Y-%m-%d %H:%M %Z}"
        return f"paused since {since}, and an event has waited for {waiting:.0f} s: `counterfoil relay resume`"
    if checkpoint.beat_age > LONGEST_SILENCE:
        return f"no sign of life for {checkpoint.beat_age:.0f} s: start the relay"
    if waiting > LONGEST_SILENCE:
        return f"an event has waited for {waiting:.0f} s: see the relay's log"
    return None


def _number(connection: Connection, statement: str, *parameters: object) -> float | None:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return None if row is None else row[0]
