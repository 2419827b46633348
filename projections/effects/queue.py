"""The effects that wait: taken by one worker at a time, in order per key, and what became of each."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from domain.errors import CounterfoilError
from infrastructure.backoff import Backoff

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 900.0
"""Seconds before the second attempt, and between two at the most."""

# The first of each key and no other: what comes behind it is not due before it is sent or has failed. Nobody waits
# for a row that another worker is just taking: SKIP LOCKED. Once taken, it is kept by due_at and not by a
# lock, because no transaction may stay open while the provider is called; if we die, others find it when that is over.
# Materialized, because a subquery that is run again would take another one each time.
TAKE = """
    WITH due AS MATERIALIZED (
        SELECT id FROM outgoing_effects AS first
        WHERE consumer_name = %(consumer_name)s AND sent_at IS NULL AND failed_at IS NULL
          AND due_at <= clock_timestamp()
          AND NOT EXISTS (
              SELECT FROM outgoing_effects AS earlier
              WHERE earlier.consumer_name = first.consumer_name AND earlier.key = first.key
                AND earlier.position < first.position AND earlier.sent_at IS NULL AND earlier.failed_at IS NULL
          )
        ORDER BY due_at, position LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
    UPDATE outgoing_effects AS taken
    SET attempts = attempts + 1, worker = %(worker)s, due_at = clock_timestamp() + %(seconds)s * interval '1 s'
    FROM due WHERE taken.id = due.id
    RETURNING taken.id, effect, key, content, attempts
"""
SENT = """
    UPDATE outgoing_effects SET sent_at = clock_timestamp(), last_problem = NULL WHERE id = %s AND worker = %s
"""
REFUSED = """
    UPDATE outgoing_effects SET failed_at = clock_timestamp(), last_problem = %s WHERE id = %s AND worker = %s
"""
LATER = """
    UPDATE outgoing_effects SET due_at = clock_timestamp() + %s * interval '1 s', last_problem = %s
    WHERE id = %s AND worker = %s
"""
COUNT = """
    SELECT count(*) FILTER (WHERE failed_at IS NULL), count(*) FILTER (WHERE failed_at IS NOT NULL)
    FROM outgoing_effects WHERE consumer_name = %s AND sent_at IS NULL
"""
HAS_EFFECTS = "SELECT to_regclass('outgoing_effects') IS NOT NULL"
UNSENT = """
    SELECT id, effect, key, requested_at, attempts, due_at, failed_at, last_problem
    FROM outgoing_effects WHERE consumer_name = %s AND sent_at IS NULL ORDER BY position LIMIT %s
"""
REDRIVE = """
    UPDATE outgoing_effects SET failed_at = NULL, due_at = clock_timestamp()
    WHERE consumer_name = %s AND failed_at IS NOT NULL AND (id = %s OR %s)
"""

LONGEST_PROBLEM = 500


@dataclass(frozen=True)
class Effect:
    """One effect to call for. id: the idempotency key. content: as it was asked for. attempts: this one included."""

    id: str
    effect: str
    key: str
    content: dict[str, Any]
    attempts: int


@dataclass(frozen=True)
class Unsent:
    """failed_at: when the provider refused it for good; None while it waits, until due_at at least."""

    id: str
    effect: str
    key: str
    requested_at: datetime
    attempts: int
    due_at: datetime
    failed_at: datetime | None
    last_problem: str | None


@dataclass(eq=False)
class NoSuchEffect(CounterfoilError):
    """There is no failed effect of this id. What to do: look at `counterfoil effects list MODULE`."""

    effect_id: str

    def __str__(self) -> str:
        return f"There is no failed effect {self.effect_id!r}. See `counterfoil effects list`."


class Queue:
    """The effects of one consumer, for one worker. Each method takes the connection to use (autocommit)."""

    def __init__(self, consumer_name: str, seconds: float) -> None:
        """seconds: how long this worker has an effect to itself; longer than a provider is waited for."""
        self._consumer_name, self._seconds = consumer_name, seconds
        self._worker = secrets.token_hex(8)

    def take(self, connection: Connection) -> Effect | None:
        """The effect that is due the longest, of those that nothing of their key is ahead of."""
        fields = {"consumer_name": self._consumer_name, "worker": self._worker, "seconds": self._seconds}
        row = connection.execute(TAKE, fields).fetchone()
        return Effect(*row) if row else None

    def sent(self, connection: Connection, effect: Effect) -> None:
        """The provider has done it. Says nothing when another worker has taken it over meanwhile."""
        connection.execute(SENT, (effect.id, self._worker))

    def refused(self, connection: Connection, effect: Effect, problem: str) -> None:
        """It is never tried again unless somebody redrives it; those behind it go on."""
        connection.execute(REFUSED, (_storable(problem), effect.id, self._worker))

    def later(self, connection: Connection, effect: Effect, problem: str) -> None:
        """It is tried again after a pause, longer each time and at random; those behind it wait."""
        base = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(effect.attempts - 1, 20))
        pause = Backoff(base=base, cap=LONGEST_PAUSE).next_delay()
        connection.execute(LATER, (pause, _storable(problem), effect.id, self._worker))


def count(connection: Connection, consumer_name: str) -> tuple[int, int]:
    """How many wait, and how many have failed."""
    waiting, failed = connection.execute(COUNT, (consumer_name,)).fetchone() or (0, 0)
    return waiting, failed


def failed_effects(connection: Connection, consumer_name: str) -> int:
    """How many have failed; also of a projection that asks for no effects and has no table for them."""
    if connection.execute(HAS_EFFECTS).fetchone() != (True,):
        return 0
    return count(connection, consumer_name)[1]


def unsent(connection: Connection, consumer_name: str, most: int) -> list[Unsent]:
    """What waits and what has failed, in order."""
    return [Unsent(*row) for row in connection.execute(UNSENT, (consumer_name, most))]


def redrive(connection: Connection, consumer_name: str, effect_id: str | None) -> int:
    """A failed effect waits again, or all of them (None); returns how many. Raises NoSuchEffect."""
    number = connection.execute(REDRIVE, (consumer_name, effect_id, effect_id is None)).rowcount
    if effect_id is not None and not number:
        raise NoSuchEffect(effect_id)
    return number


def _storable(problem: str) -> str:
    return problem[:LONGEST_PROBLEM].encode(errors="replace").decode().replace("\0", "?")
