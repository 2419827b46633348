"""Forgets which events were applied, by evidence: only ids that cannot come again, whole ranges, the oldest first.

What is forgotten can never be told from an event that is new. So the horizon moves in the same
transaction, and whatever comes again from below it is quarantined and never applied (inbox.py).
"""

import logging
from dataclasses import dataclass
from threading import Event

from psycopg import sql
from psycopg.errors import DeadlockDetected, LockNotAvailable

from domain.errors import CounterfoilError
from infrastructure.backoff import Backoff
from infrastructure.postgres import Connection
from projections.inbox import OUR_SHAPE
from projections.inbox_ranges import LOCK_OUT_CLAIMS, Range, now_ms, ranges
from projections.verdicts import MARGIN_MS, Limits, Verdict, and_kept_by, judge, parked_in, usage_of

logger = logging.getLogger(__name__)

LOCK_SECONDS = 0.5
"""For the connection: the longest that consumers queue behind us. Shorter than PostgreSQL waits before it looks for
a deadlock: a claim of an old id and we may wait for each other, and then it is we who give way."""

ATTEMPTS = 20

CONSUMERS = """
    WITH RECURSIVE consumer AS (
        (SELECT consumer_name FROM processed_events ORDER BY consumer_name LIMIT 1)
        UNION ALL
        SELECT (
            SELECT consumer_name FROM processed_events
            WHERE consumer_name > consumer.consumer_name ORDER BY consumer_name LIMIT 1
        ) FROM consumer WHERE consumer_name IS NOT NULL
    )
    SELECT consumer_name FROM consumer WHERE consumer_name IS NOT NULL
"""
# Nothing is added to the range while its rows are judged. Claims of other ranges go on.
HOLD_STILL = sql.SQL("LOCK TABLE {} IN SHARE MODE")
MOVE_HORIZON = """
    INSERT INTO inbox_horizons AS mine (consumer_name, event_id) SELECT unnest(%s::text[]), %s
    ON CONFLICT (consumer_name) DO UPDATE
    SET event_id = greatest(mine.event_id, excluded.event_id), moved_at = clock_timestamp()
"""
DETACH = sql.SQL("ALTER TABLE processed_events DETACH PARTITION {}")
MAKE_ROOM_FOR_OTHERS = """
    CREATE TABLE IF NOT EXISTS processed_events_other PARTITION OF processed_events
    FOR VALUES FROM ('evt_01:') TO ('evt_01a')
"""
FIND_OTHERS = sql.SQL("""
    CREATE TEMPORARY TABLE others ON COMMIT DROP AS
    SELECT consumer_name, event_id, processed_at FROM {} WHERE event_id !~ {}
""")
KEEP_OTHERS = """
    INSERT INTO processed_events (consumer_name, event_id, processed_at)
    SELECT consumer_name, event_id, processed_at FROM others
"""
DROP = sql.SQL("DROP TABLE {}")
SWEEP = """
    DELETE FROM processed_events_rest WHERE ctid = ANY (ARRAY(
        SELECT rest.ctid FROM processed_events_rest AS rest JOIN inbox_horizons AS horizon USING (consumer_name)
        WHERE rest.event_id < horizon.event_id AND rest.event_id ~ %s LIMIT 10000
    ))
"""


@dataclass(eq=False)
class InboxBusy(CounterfoilError):
    """Consumers held the inbox's lock all the time. What was dropped before is dropped, and nothing is half done."""

    attempts: int

    def __str__(self) -> str:
        return f"Consumers held the inbox's lock in {self.attempts} attempts. Run it again; it goes on where it was."


def consumers(connection: Connection) -> list[str]:
    """All that have rows in this inbox."""
    return [name for (name,) in connection.execute(CONSUMERS)]


def examine(connection: Connection, consumer_name: str, limits: Limits, margin_ms: int = MARGIN_MS) -> list[Verdict]:
    """What `prune` would do, and why. Changes nothing and locks nothing."""
    verdicts: list[Verdict] = []
    for each in _past(connection):
        verdict = judge(connection, each, consumer_name, limits, margin_ms)
        if any(older.kept_by for older in verdicts):
            verdict = and_kept_by(verdict, "an older range is kept")
        verdicts.append(verdict)
    return verdicts


def prune(
    connection: Connection, consumer_name: str, limits: Limits, stop: Event, margin_ms: int = MARGIN_MS
) -> list[Verdict]:
    """Drops ranges, the oldest first, until one has to stay; returns those dropped, and the one that stays.

    limits: from before this call, of the consumer that is asked for and of every other that is known; they only
    ever grow. The connection has lock timeouts of LOCK_SECONDS. Raises InboxBusy, psycopg.Error.
    """
    verdicts: list[Verdict] = []
    for each in _past(connection):
        if stop.is_set():
            break
        # First without locks: nearly always that is the end of it.
        verdict = judge(connection, each, consumer_name, limits, margin_ms)
        if not verdict.kept_by:
            verdict = _drop_patiently(connection, each, consumer_name, limits, stop, margin_ms)
        verdicts.append(verdict)
        if verdict.kept_by:
            break
    while not stop.is_set() and connection.execute(SWEEP, (OUR_SHAPE,)).rowcount:
        pass  # in short transactions: below the horizon nobody looks for these rows any more
    return verdicts


def _past(connection: Connection) -> list[Range]:
    now = now_ms(connection)
    return [each for each in ranges(connection) if each.ends_at_ms < now]


def _drop_patiently(
    connection: Connection, range_: Range, consumer_name: str, limits: Limits, stop: Event, margin_ms: int
) -> Verdict:
    """Between two attempts those who queued behind the first get their turn."""
    backoff = Backoff(base=0.5, cap=5.0)
    while True:
        try:
            return _drop(connection, range_, consumer_name, limits, margin_ms)
        except (LockNotAvailable, DeadlockDetected):
            attempts = backoff.attempts + 1
            if attempts >= ATTEMPTS or stop.is_set():
                raise InboxBusy(attempts) from None
            logger.info("consumers hold the inbox's lock", extra={"range": range_.digits})
            backoff.wait(stop)


def _drop(connection: Connection, range_: Range, consumer_name: str, limits: Limits, margin_ms: int) -> Verdict:
    with connection.transaction():
        for table in filter(None, (range_.table, "processed_events_rest")):
            connection.execute(HOLD_STILL.format(sql.Identifier(table)))
        verdict = judge(connection, range_, consumer_name, limits, margin_ms)
        if verdict.kept_by:
            return verdict
        names = [each.consumer_name for each in usage_of(connection, range_)]
        if range_.table is not None:
            connection.execute(FIND_OTHERS.format(sql.Identifier(range_.table), sql.Literal(OUR_SHAPE)))
        # A claim holds its lock until its transaction ends: from here on none is under way, and the next one
        # sees the horizon that we leave. Without this a claim could find its range gone and the old horizon.
        # Nothing that takes long comes after it.
        connection.execute(LOCK_OUT_CLAIMS)
        if parked_in(connection, range_):
            return and_kept_by(verdict, "an event of it has just been put in quarantine")
        connection.execute(MOVE_HORIZON, (names, range_.end_id))
        if range_.table is not None:
            _drop_table(connection, range_.table)
    logger.info("inbox range dropped", extra={"range": range_.digits, "rows": verdict.rows, "consumers": names})
    return verdict


def _drop_table(connection: Connection, name: str) -> None:
    """Ids of other shapes tell no time: they are kept."""
    table = sql.Identifier(name)
    connection.execute(DETACH.format(table))
    connection.execute(MAKE_ROOM_FOR_OTHERS)
    connection.execute(KEEP_OTHERS)
    connection.execute(DROP.format(table))
