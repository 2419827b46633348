"""Whether events drain, judged from outside: the store's own head against each relay's checkpoint and beat.

A relay is not asked how it feels. It may be dead, or measure itself against a mark that froze with it.
"""

from dataclasses import dataclass

from eventsourcing.persistence import StoredEvent

from infrastructure.checkpoint import CheckpointStatus, read_checkpoint
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import HIGHEST_POSITION
from infrastructure.postgres import Connection

LONGEST_SILENCE = 60.0
"""Seconds after which a relay without a beat, or an event that is still unpublished, is a fault."""

SET_BACK = "the store was set back behind what was published; see docs/operations.md"

RELAYS = "SELECT relay FROM relay_checkpoints ORDER BY relay"
PUBLISHED_LAST = "SELECT originator_id, originator_version, topic, state FROM stored_events WHERE position = %s"
OLDEST_AFTER = """
    SELECT extract(epoch FROM clock_timestamp() - stored_at)::float8
    FROM stored_events WHERE position > %s ORDER BY position LIMIT 1
"""


@dataclass(frozen=True)
class RelayHealth:
    """highest: of the store. waiting_seconds: age of the oldest event above the checkpoint, None when there is none.

    fault: what is wrong, in words, and what to do; None when all is well.
    """

    relay: str
    position: int
    highest: int
    waiting_seconds: float | None
    leased: bool
    beat_age: float
    fault: str | None


def relay_health(connection: Connection) -> list[RelayHealth]:
    """Of every relay that ever ran on this store."""
    relays = [relay for (relay,) in connection.execute(RELAYS)]
    return [_health(connection, checkpoint) for relay in relays if (checkpoint := read_checkpoint(connection, relay))]


def _health(connection: Connection, checkpoint: CheckpointStatus) -> RelayHealth:
    highest = _number(connection, HIGHEST_POSITION) or 0
    row = connection.execute(PUBLISHED_LAST, (checkpoint.position,)).fetchone()
    last = fingerprint(StoredEvent(*row)) if row else None
    waiting = _number(connection, OLDEST_AFTER, checkpoint.position)
    return RelayHealth(
        relay=checkpoint.relay,
        position=checkpoint.position,
        highest=int(highest),
        waiting_seconds=waiting,
        leased=bool(checkpoint.leased),
        beat_age=checkpoint.beat_age,
        fault=SET_BACK if checkpoint.anchor not in (None, last) else _fault(checkpoint, int(highest), waiting or 0.0),
    )


def _fault(checkpoint: CheckpointStatus, highest: int, waiting: float) -> str | None:
    if checkpoint.position > highest:
        return SET_BACK
    if checkpoint.held_position is not None:
        return f"held before position {checkpoint.held_position}: {checkpoint.held_reason}"
    if checkpoint.beat_age > LONGEST_SILENCE:
        return f"no sign of life for {checkpoint.beat_age:.0f} s: start the relay"
    if waiting > LONGEST_SILENCE:
        return f"an event has waited for {waiting:.0f} s: see the relay's log"
    return None


def _number(connection: Connection, statement: str, *parameters: object) -> float | None:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return None if row is None else row[0]
