"""Forgets which events were applied, by evidence: only ids that cannot come again, whole ranges, the oldest first.

What is forgotten can never be told from an event that is new. So the horizon moves in the same
transaction, and whatever comes again from below it is quarantined and never applied (inbox.py).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from psycopg import sql
from psycopg.errors import DeadlockDetected, LockNotAvailable

from domain.errors import CounterfoilError
from infrastructure.backoff import Backoff
from infrastructure.postgres import Connection
from projections.inbox import OUR_SHAPE
from projections.inbox_ranges import LOCK_OUT_CLAIMS, Range, now_ms, ranges
from projections.redelivery import Limit, utc

logger = logging.getLogger(__name__)

MARGIN_MS = 86_400_000
"""A day: what clocks may differ by, and a relay that was away may be late by."""

LOCK_SECONDS = 0.5
"""For the connection: the longest that consumers queue behind us. Shorter than PostgreSQL waits before it looks for
a deadlock: a claim of an old id and we may wait for each other, and then it is we who give way."""

ATTEMPTS = 20

Limits = Mapping[str, Sequence[Limit]]
"""What may still be delivered to each consumer that is known."""

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
SIZE = "SELECT pg_total_relation_size(to_regclass(%s))"
USAGE = sql.SQL("""
    SELECT consumer_name, count(*), (extract(epoch FROM max(processed_at)) * 1000)::bigint
    FROM (
        {table} SELECT consumer_name, event_id, processed_at FROM processed_events_rest WHERE event_id < {end}
    ) AS known
    WHERE event_id ~ {our_shape} AND NOT EXISTS (
        SELECT FROM inbox_horizons AS horizon
        WHERE horizon.consumer_name = known.consumer_name AND known.event_id < horizon.event_id
    )
    GROUP BY consumer_name ORDER BY consumer_name
""")
OF_ITS_TABLE = sql.SQL("SELECT consumer_name, event_id, processed_at FROM {} UNION ALL")
PARKED = """
    SELECT count(*) FROM quarantined_events WHERE state = 'parked' AND event_id < %s AND event_id ~ %s
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
KEEP_OTHERS = sql.SQL("""
    INSERT INTO processed_events (consumer_name, event_id, processed_at)
    SELECT consumer_name, event_id, processed_at FROM {} WHERE event_id !~ {}
""")
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


@dataclass(frozen=True)
class Usage:
    """last_ms: when the consumer applied the last of its events in the range, Unix time."""

    consumer_name: str
    rows: int
    last_ms: int


@dataclass(frozen=True)
class Verdict:
    """rows: None when nobody had to count. bytes: of the range's own table. kept_by: why it stays, in words; empty
    when it may be dropped, or was."""

    range: Range
    rows: int | None
    bytes: int
    kept_by: tuple[str, ...]


def consumers(connection: Connection) -> list[str]:
    """All that have rows in this inbox."""
    return [name for (name,) in connection.execute(CONSUMERS)]


def examine(connection: Connection, consumer_name: str, limits: Limits, margin_ms: int = MARGIN_MS) -> list[Verdict]:
    """What `prune` would do, and why. Changes nothing and locks nothing."""
    verdicts: list[Verdict] = []
    for each in _past(connection):
        verdict = _judge(connection, each, consumer_name, limits, margin_ms)
        if any(older.kept_by for older in verdicts):
            verdict = _kept(verdict, "an older range is kept")
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
        verdict = _judge(connection, each, consumer_name, limits, margin_ms)
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


def _judge(connection: Connection, range_: Range, consumer_name: str, limits: Limits, margin_ms: int) -> Verdict:
    size = _size(connection, range_)
    too_young = tuple(_too_late(range_.ends_at_ms + margin_ms, limits.get(consumer_name, ())))
    if too_young:
        return Verdict(range_, None, size, too_young)
    usage = _usage(connection, range_)
    kept_by = [reason for each in usage for reason in _reasons(each, range_, limits, margin_ms)]
    parked = _parked(connection, range_)
    if parked:
        kept_by.append(f"{parked} events of it wait in quarantine")
    return Verdict(range_, sum(each.rows for each in usage), size, tuple(dict.fromkeys(kept_by)))


def _reasons(usage: Usage, range_: Range, limits: Limits, margin_ms: int) -> Iterator[str]:
    if usage.consumer_name not in limits:
        yield f"{usage.consumer_name} has rows in it, and no projection of that name is known here"
        return
    own = limits[usage.consumer_name]
    too_young = [f"{usage.consumer_name}: {why}" for why in _too_late(range_.ends_at_ms + margin_ms, own)]
    yield from too_young
    if not too_young and any(_too_late(usage.last_ms + margin_ms, own)):
        # Its record is as young as that, whatever the time in its id: the relay may have been late.
        yield f"{usage.consumer_name}: an event of it was applied as late as {utc(usage.last_ms)}"


def _too_late(time_ms: int, limits: Sequence[Limit]) -> Iterator[str]:
    return (limit.why for limit in limits if time_ms > limit.from_ms)


def _drop_patiently(
    connection: Connection, range_: Range, consumer_name: str, limits: Limits, stop: Event, margin_ms: int
) -> Verdict:
    """Between two attempts those who queued behind the first get their turn."""
    backoff = Backoff(base=0.5, cap=5.0)
    while True:
        try:
            return _drop(connection, range_, consumer_name, limits, margin_ms)
        except (LockNotAvailable, DeadlockDetected):
            if backoff.attempts >= ATTEMPTS or stop.is_set():
                raise InboxBusy(ATTEMPTS) from None
            logger.info("consumers hold the inbox's lock", extra={"range": range_.digits})
            backoff.wait(stop)


def _drop(connection: Connection, range_: Range, consumer_name: str, limits: Limits, margin_ms: int) -> Verdict:
    with connection.transaction():
        for table in filter(None, (range_.table, "processed_events_rest")):
            connection.execute(HOLD_STILL.format(sql.Identifier(table)))
        verdict = _judge(connection, range_, consumer_name, limits, margin_ms)
        if verdict.kept_by:
            return verdict
        names = [each.consumer_name for each in _usage(connection, range_)]
        # A claim holds its lock until its transaction ends: from here on none is under way, and the next one
        # sees the horizon that we leave. Without this a claim could find its range gone and the old horizon.
        connection.execute(LOCK_OUT_CLAIMS)
        if _parked(connection, range_):
            return _kept(verdict, "an event of it has just been put in quarantine")
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
    connection.execute(KEEP_OTHERS.format(table, sql.Literal(OUR_SHAPE)))
    connection.execute(DROP.format(table))


def _usage(connection: Connection, range_: Range) -> list[Usage]:
    own = OF_ITS_TABLE.format(sql.Identifier(range_.table)) if range_.table else sql.SQL("")
    statement = USAGE.format(table=own, end=sql.Literal(range_.end_id), our_shape=sql.Literal(OUR_SHAPE))
    return [Usage(*row) for row in connection.execute(statement)]


def _parked(connection: Connection, range_: Range) -> int:
    (count,) = connection.execute(PARKED, (range_.end_id, OUR_SHAPE)).fetchone() or (0,)
    return int(count)


def _size(connection: Connection, range_: Range) -> int:
    (size,) = connection.execute(SIZE, (range_.table,)).fetchone() or (0,)
    return int(size or 0)


def _kept(verdict: Verdict, reason: str) -> Verdict:
    return Verdict(verdict.range, verdict.rows, verdict.bytes, (*verdict.kept_by, reason))
