"""Whether a range of the inbox may be dropped, and what keeps it, in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from infrastructure.postgres import Connection
from projections.inbox import OUR_SHAPE
from projections.inbox_ranges import Range
from projections.redelivery import Limit, utc

MARGIN_MS = 86_400_000
"""A day: what clocks may differ by, and a relay that was away may be late by."""

Limits = Mapping[str, Sequence[Limit]]
"""What may still be delivered to each consumer that is known."""

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
# Not those from below the horizon: for them there is nothing left to remember. A record whose id was not read may be
# of any time, and code that can read it may be on its way; in two categories there never is an event.
PARKED = """
    SELECT count(*) FROM quarantined_events AS parked
    WHERE state = 'parked' AND (
        event_id IS NULL AND category NOT IN ('no_value', 'not_json', 'too_old')
        OR event_id < %s AND event_id ~ %s AND NOT EXISTS (
            SELECT FROM inbox_horizons AS horizon
            WHERE horizon.consumer_name = parked.consumer_name AND parked.event_id < horizon.event_id
        )
    )
"""


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


def judge(connection: Connection, range_: Range, consumer_name: str, limits: Limits, margin_ms: int) -> Verdict:
    """What keeps the range: by its time alone where that is enough, else by reading its rows. Takes no lock.

    consumer_name: who is asked for; it must allow the range even where it has no rows in it.
    """
    size = _size(connection, range_)
    too_young = tuple(_too_late(range_.ends_at_ms + margin_ms, limits[consumer_name]))
    if too_young:
        return Verdict(range_, None, size, too_young)
    usage = usage_of(connection, range_)
    kept_by = [reason for each in usage for reason in _reasons(each, range_, limits, margin_ms)]
    parked = parked_in(connection, range_)
    if parked:
        kept_by.append(f"{parked} events of it, or whose id cannot be read, wait in quarantine")
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


def usage_of(connection: Connection, range_: Range) -> list[Usage]:
    """Who remembers what of the range, and of all that has no table and comes before its end."""
    own = OF_ITS_TABLE.format(sql.Identifier(range_.table)) if range_.table else sql.SQL("")
    statement = USAGE.format(table=own, end=sql.Literal(range_.end_id), our_shape=sql.Literal(OUR_SHAPE))
    return [Usage(*row) for row in connection.execute(statement)]


def parked_in(connection: Connection, range_: Range) -> int:
    """How many of its events, of earlier ones, or of ones whose id is not known, wait in quarantine."""
    (count,) = connection.execute(PARKED, (range_.end_id, OUR_SHAPE)).fetchone() or (0,)
    return int(count)


def _size(connection: Connection, range_: Range) -> int:
    (size,) = connection.execute(SIZE, (range_.table,)).fetchone() or (0,)
    return int(size or 0)


def and_kept_by(verdict: Verdict, reason: str) -> Verdict:
    """The verdict with one more reason."""
    return Verdict(verdict.range, verdict.rows, verdict.bytes, (*verdict.kept_by, reason))
