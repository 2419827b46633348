"""The ranges that the inbox keeps its event ids in, each a partition that can be dropped whole; and those to come."""

import re
from dataclasses import dataclass

from psycopg import sql

from infrastructure.postgres import Connection
from projections.inbox import OUR_SHAPE

AHEAD = 10
"""Ranges made beyond the present one: a month."""

MOST_TO_MOVE = 100_000
"""Rows without a range that are moved into it when it is made, while consumers wait; more stay where they are."""

_BITS = 28
"""Of milliseconds in a range: three days. What is left of 48 bits are five hexadecimal digits."""

_TABLE = re.compile(r"processed_events_(before_)?([0-9a-f]{5})")

TABLES = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'processed_events'::regclass
"""
RANGES_OF_THE_REST = "SELECT DISTINCT substr(event_id, 5, 5) FROM processed_events_rest WHERE event_id ~ %s"
NOW = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# Excludes every claim, so that none is on its way into the rest while its range is made.
LOCK_OUT_CLAIMS = "LOCK TABLE ONLY processed_events IN ACCESS EXCLUSIVE MODE"

IS_THERE = "SELECT to_regclass(%s) IS NOT NULL"
COUNT_STRAYS = """
    SELECT count(*) FROM (
        SELECT FROM processed_events_rest WHERE event_id >= %s AND event_id < %s LIMIT %s
    ) AS stray
"""
MAKE = sql.SQL("CREATE TABLE {} (LIKE processed_events INCLUDING DEFAULTS INCLUDING INDEXES)")
MOVE_STRAYS = sql.SQL("""
    WITH moved AS (
        DELETE FROM processed_events_rest WHERE event_id >= {first} AND event_id < {end}
        RETURNING consumer_name, event_id, processed_at
    )
    INSERT INTO {table} (consumer_name, event_id, processed_at) SELECT consumer_name, event_id, processed_at FROM moved
""")
ATTACH = sql.SQL("ALTER TABLE processed_events ATTACH PARTITION {table} FOR VALUES FROM ({first}) TO ({end})")


@dataclass(frozen=True, order=True)
class Range:
    """The ids of three days. number: of those spans since 1970. table: None when all its ids are in the rest.

    The table that was there before there were ranges is the range that it ends with.
    """

    number: int
    table: str | None = None

    @property
    def digits(self) -> str:
        return f"{self.number:05x}"

    @property
    def end_id(self) -> str:
        """The first id of ours that comes after it."""
        return f"evt_{self.number + 1:05x}"

    @property
    def ends_at_ms(self) -> int:
        """Unix time."""
        return (self.number + 1) << _BITS


def ranges(connection: Connection) -> list[Range]:
    """Those that have ids or a table of their own, the oldest first."""
    found = {each.number: each for each in map(_of_table, _names(connection)) if each}
    for (digits,) in connection.execute(RANGES_OF_THE_REST, (OUR_SHAPE,)):
        found.setdefault(int(digits, 16), Range(int(digits, 16)))
    return sorted(found.values())


def now_ms(connection: Connection) -> int:
    """The database's clock: Unix time."""
    (now,) = connection.execute(NOW).fetchone() or (0,)
    return int(now)


def make_ranges_ahead(connection: Connection, ahead: int = AHEAD) -> list[str]:
    """Makes what is missing of the present range and those that follow; returns the tables that were made.

    Each is made in a short transaction that excludes all claims. Raises psycopg.Error: LockNotAvailable when
    consumers are busy, InsufficientPrivilege when the tables are not ours. Nothing depends on a range being
    made in time: what has none is kept in `processed_events_rest`.
    """
    known = {each.number for each in map(_of_table, _names(connection)) if each}
    present = now_ms(connection) >> _BITS
    missing = [number for number in range(present, present + ahead + 1) if number not in known]
    return [table for number in missing if (table := _make(connection, Range(number)))]


def _make(connection: Connection, new: Range) -> str | None:
    """None when another process was faster, or too much would have to be moved."""
    table, first = f"processed_events_{new.digits}", f"evt_{new.digits}"
    # What begins with the same digits and nothing else: `evt_01a29` ends before `evt_01a2:`, not at `evt_01a2a`.
    end = first[:-1] + chr(ord(first[-1]) + 1)
    names = {"table": sql.Identifier(table), "first": sql.Literal(first), "end": sql.Literal(end)}
    with connection.transaction():
        connection.execute(LOCK_OUT_CLAIMS)
        strays = connection.execute(COUNT_STRAYS, (first, end, MOST_TO_MOVE + 1)).fetchone()
        if strays is None or strays[0] > MOST_TO_MOVE or connection.execute(IS_THERE, (table,)).fetchone() == (True,):
            return None
        connection.execute(MAKE.format(names["table"]))
        connection.execute(MOVE_STRAYS.format(**names))
        connection.execute(ATTACH.format(**names))
    return table


def _names(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(TABLES)]


def _of_table(name: str) -> Range | None:
    """None for the tables of ids that are not ours."""
    match = _TABLE.fullmatch(name)
    if match is None:
        return None
    number = int(match[2], 16)
    return Range(number - 1 if match[1] else number, name)
