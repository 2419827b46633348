"""What people have put into the live tables, and no event tells, is carried over into the other ones."""

from psycopg import Connection, IntegrityError, sql

from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.target import Target

KEY = """
    SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = format('%%I.%%I', %s::text, %s::text)::regclass AND indisprimary
    ORDER BY array_position(indkey::int2[], attnum)
"""

CARRY = """
    INSERT INTO {other} ({key}, {columns})
    SELECT {key}, {given}
    FROM {live} AS given LEFT JOIN {other} AS there USING ({key})
    WHERE {one_of_key} IS NULL OR ({given}) IS DISTINCT FROM ({there})
    ON CONFLICT ({key}) DO UPDATE SET ({columns}) = ROW ({excluded})
"""


def primary_key(connection: Connection, schema: str, table: str) -> list[str]:
    return [name for (name,) in connection.execute(KEY, (schema, table))]


def carry(target: Target, tx: Connection, live: str) -> None:
    """Afterwards each row that is live is there with the same input. Raises RebuildRefused when a constraint of the
    table does not allow that, as when less is on hand than the rebuild has reserved."""
    for table, columns in target.projection.carried.items():
        key = primary_key(tx, live, table)
        try:
            tx.execute(_statement(live, target.other_schema, table, key, list(columns)))
        except IntegrityError as error:
            reason = f"what was put into {table} does not fit the rebuilt rows ({error.diag.constraint_name})"
            raise RebuildRefused(target.name, f"{reason}: change it, or `rebuild abandon`") from None


def _statement(live: str, other: str, table: str, key: list[str], columns: list[str]) -> sql.Composed:
    return sql.SQL(CARRY).format(
        live=sql.Identifier(live, table),
        other=sql.Identifier(other, table),
        key=_names(key),
        columns=_names(columns),
        given=_names(columns, "given"),
        there=_names(columns, "there"),
        one_of_key=_names(key[:1], "there"),
        excluded=_names(columns, "excluded"),
    )


def _names(columns: list[str], of: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in columns)
