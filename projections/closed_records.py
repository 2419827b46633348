"""Removes records of what was done: entries that were released from quarantine, and effects that were sent.

Both tell what came of a record in Kafka, and keep it from being parked, or asked for, once more. So they go by the rule
of the inbox: once Kafka can bring nothing of their time again. What was discarded stays for ever: a rebuild reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from infrastructure.postgres import Connection
from projections.effects.queue import HAS_EFFECTS
from projections.redelivery import Limit
from projections.verdicts import MARGIN_MS

# A record was in Kafka before it was released, and an effect's before it was sent: so these times are safe ones.
RELEASED = """
    DELETE FROM quarantined_events WHERE id = ANY (ARRAY(
        SELECT id FROM quarantined_events
        WHERE consumer_name = %s AND state = 'released' AND closed_at < to_timestamp(%s / 1000.0) LIMIT 1000
    ))
"""
SENT = """
    DELETE FROM outgoing_effects WHERE id = ANY (ARRAY(
        SELECT id FROM outgoing_effects
        WHERE consumer_name = %s AND sent_at < to_timestamp(%s / 1000.0) LIMIT 1000
    ))
"""


@dataclass(frozen=True)
class Removed:
    """before_ms: Unix time up to which they went."""

    released: int
    sent: int
    before_ms: int


def remove_closed(
    connection: Connection,
    consumer_name: str,
    limits: Sequence[Limit],
    asked_ms: int,
    stop: Event,
    margin_ms: int = MARGIN_MS,
) -> Removed:
    """limits: of the consumer, from before this call. asked_ms: Unix time; nothing younger goes.

    In short transactions, for as long as it is not told to stop. Raises psycopg.Error.
    """
    before = max(0, min([asked_ms, *(limit.from_ms - margin_ms for limit in limits)]))
    released = _in_pieces(connection, RELEASED, (consumer_name, before), stop)
    has_effects = connection.execute(HAS_EFFECTS).fetchone() == (True,)
    sent = _in_pieces(connection, SENT, (consumer_name, before), stop) if has_effects else 0
    return Removed(released, sent, before)


def _in_pieces(connection: Connection, statement: str, of: tuple[str, int], stop: Event) -> int:
    removed = 0
    while not stop.is_set() and (number := connection.execute(statement.encode(), of).rowcount):
        removed += number
    return removed
