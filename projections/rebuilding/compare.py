"""Where the other tables and the live ones differ: counted, summed up, and row by row where they should agree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from psycopg import Connection, sql

from projections.rebuilding.carry import primary_key
from projections.rebuilding.compared import Compared, SummedUp
from projections.rebuilding.target import Target

MOST_SUSPECTS = 10_000
"""Rows of one table that are remembered, to be looked at again when both sides have come to the same place."""

MOST_TOLD = 5

COLUMNS = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass(format('%%I.%%I', %s::text, %s::text)) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""
IS_PARTITION = "SELECT relispartition FROM pg_class WHERE oid = to_regclass(format('%%I.%%I', %s::text, %s::text))"

SUM_UP = "SELECT count(*), coalesce(sum(hashtextextended(ROW ({columns})::text, 0)), 0) FROM {table}"

# By key; a row that only one side has differs too.
DIFFERING = """
    SELECT {key}
    FROM (SELECT {key}, ROW ({columns})::text AS told FROM {live} {only}) AS old
    FULL JOIN (SELECT {key}, ROW ({columns})::text AS told FROM {other} {only}) AS new USING ({key})
    WHERE old.told IS DISTINCT FROM new.told
    ORDER BY {key} LIMIT %(limit)s
"""
ONLY = "WHERE ({key}) IN (SELECT * FROM unnest({lists}))"


def compare(target: Target, connection: Connection, live: str, tables: Sequence[str]) -> list[Compared]:
    """Each table that both sides have, in one snapshot of its own."""
    return [
        compared
        for table in tables
        if (compared := _compare(target.projection.agreeing, connection, live, target.other_schema, table))
    ]


def differing(
    compared: Compared, connection: Connection, live: str, other: str, only: Sequence[tuple[Any, ...]] | None = None
) -> list[tuple[Any, ...]]:
    """Keys of rows that differ now, at most MOST_SUSPECTS. only: keys to look at."""
    key = _names(compared.key)
    condition: sql.Composable = sql.SQL("")
    values: dict[str, Any] = {"limit": MOST_SUSPECTS}
    if only is not None:
        types = _types(connection, live, compared)
        lists = [sql.SQL("%(k{})s::{}[]").format(sql.SQL(str(at)), sql.SQL(name)) for at, name in enumerate(types)]
        condition = sql.SQL(ONLY).format(key=key, lists=sql.SQL(", ").join(lists))
        values |= {f"k{at}": [row[at] for row in only] for at in range(len(compared.key))}
    statement = sql.SQL(DIFFERING).format(
        key=key,
        columns=_expressions(compared.columns),
        live=sql.Identifier(live, compared.table),
        other=sql.Identifier(other, compared.table),
        only=condition,
    )
    return connection.execute(statement, values).fetchall()


def summed_up_again(compared: Compared, connection: Connection, live: str, other: str) -> Compared:
    """For a table without a key, whose rows cannot be told apart."""
    of_live, of_other = (_sum_up(connection, schema, compared.table, compared.columns) for schema in (live, other))
    return replace(compared, live=of_live, other=of_other)


def in_words(compared: Compared, keys: Sequence[tuple[Any, ...]]) -> str:
    """Names rows by their keys, which are ids."""
    many = f"{len(keys)} rows" if len(keys) < MOST_SUSPECTS else f"{MOST_SUSPECTS} rows or more"
    told = ", ".join("/".join(map(str, key)) for key in keys[:MOST_TOLD])
    return f"{compared.table}: {many} ({told}{', ...' if len(keys) > MOST_TOLD else ''})"


def _compare(
    agreeing: Mapping[str, Sequence[str]] | None, connection: Connection, live: str, other: str, table: str
) -> Compared | None:
    theirs = _columns(connection, other, table)
    common = [name for name in _columns(connection, live, table) if name in theirs]
    if not common or connection.execute(IS_PARTITION, (live, table)).fetchone() == (True,):
        return None
    quoted = [sql.Identifier(name).as_string(connection) for name in common]
    columns = quoted if agreeing is None else list(agreeing.get(table, ()))
    of_live, of_other = (_sum_up(connection, schema, table, columns or quoted) for schema in (live, other))
    key = primary_key(connection, live, table) if columns else []
    compared = Compared(table, of_live, of_other, key, columns)
    if not key:
        return compared
    since = monotonic()
    return replace(compared, suspects=differing(compared, connection, live, other), seconds=monotonic() - since)


def _sum_up(connection: Connection, schema: str, table: str, columns: Sequence[str]) -> SummedUp:
    statement = sql.SQL(SUM_UP).format(columns=_expressions(columns), table=sql.Identifier(schema, table))
    rows, checksum = connection.execute(statement).fetchone() or (0, 0)
    return SummedUp(rows, int(checksum))


def _columns(connection: Connection, schema: str, table: str) -> list[str]:
    return [name for (name,) in connection.execute(COLUMNS, (schema, table))]


TYPES = """
    SELECT format_type(atttypid, NULL) FROM unnest(%s::text[]) WITH ORDINALITY AS key (attname, place)
    JOIN pg_attribute USING (attname)
    WHERE attrelid = to_regclass(format('%%I.%%I', %s::text, %s::text)) ORDER BY place
"""


def _types(connection: Connection, schema: str, compared: Compared) -> list[str]:
    return [name for (name,) in connection.execute(TYPES, (list(compared.key), schema, compared.table))]


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _expressions(columns: Sequence[str]) -> sql.Composed:
    """Of the code's own: what a projection says, or what the server quoted."""
    return sql.SQL(", ").join(sql.SQL(column) for column in columns)
