"""The live tables and the other ones change places, and every view goes on to show the live ones."""

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import Connection, sql

SEARCH_PATH = "SELECT set_config('search_path', %s, true)"

EXISTING = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind IN ('r', 'p') AND relname = ANY (%s)
    ORDER BY relname
"""

# A view is bound to the tables that it was made with, not to their names. One that shows another view shows what
# that is made to show.
VIEWS_ON_TABLES = """
    SELECT DISTINCT namespace.nspname, view.relname, pg_get_viewdef(view.oid), array_to_string(view.reloptions, ', ')
    FROM pg_class AS shown
    JOIN pg_depend ON refobjid = shown.oid AND refclassid = 'pg_class'::regclass AND classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite ON pg_rewrite.oid = objid
    JOIN pg_class AS view ON view.oid = ev_class AND view.relkind = 'v'
    JOIN pg_namespace AS namespace ON namespace.oid = view.relnamespace
    WHERE shown.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND shown.relname = ANY (%(tables)s)
      AND NOT (namespace.nspname = %(schema)s AND view.relname = ANY (%(without)s))
    ORDER BY 1, 2
"""
VIEWS_IN = """
    SELECT relname, pg_get_viewdef(oid), array_to_string(reloptions, ', ') FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind = 'v' ORDER BY oid
"""

LIVE_MIGRATIONS = """
    SELECT component, version, name, checksum, applied_at FROM {}.schema_migrations WHERE component = ANY (%s)
"""
REMOVE_MIGRATIONS = "DELETE FROM {}.schema_migrations WHERE component = ANY (%s)"
RECORD_MIGRATION = """
    INSERT INTO {}.schema_migrations (component, version, name, checksum, applied_at) VALUES (%s, %s, %s, %s, %s)
"""


class View(NamedTuple):
    """definition: its query, with the names as they are found through the search path it was read with."""

    schema: str
    name: str
    definition: str
    options: str | None

    def define(self, tx: Connection) -> None:
        """Keeps its owner and grants. Raises psycopg.Error when the columns that it shows are not there any more."""
        options = sql.SQL("WITH ({}) ").format(sql.SQL(self.options)) if self.options else sql.SQL("")
        statement = sql.SQL("CREATE OR REPLACE VIEW {}.{} {}AS {}")
        name, query = sql.Identifier(self.name), sql.SQL(self.definition)  # written by the server
        tx.execute(statement.format(sql.Identifier(self.schema), name, options, query))


class Views(NamedTuple):
    """What to define once the tables have changed places. own: the projection's, which are there on both sides."""

    own: list[View]
    others_own: list[View]
    elsewhere: list[View]


def existing(connection: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    return [name for (name,) in connection.execute(EXISTING, (schema, list(tables)))]


def read_views(tx: Connection, live: str, other: str, tables: Sequence[str]) -> Views:
    """Changes the transaction's search path."""
    _look_in(tx, other)
    made = tx.execute(VIEWS_IN, (other,)).fetchall()
    names = [name for name, *_ in made]
    _look_in(tx, live)
    former = [row for row in tx.execute(VIEWS_IN, (live,)).fetchall() if row[0] in names]
    _look_in(tx, "")
    values = {"schema": live, "tables": list(tables), "without": names}
    return Views(
        own=[View(live, *row) for row in made],
        others_own=[View(other, *row) for row in former],
        elsewhere=[View(*row) for row in tx.execute(VIEWS_ON_TABLES, values).fetchall()],
    )


def exchange(tx: Connection, live: str, other: str, tables: Sequence[str], views: Views) -> None:
    """Both sets of tables, with their indexes, constraints and own sequences, change places.

    What they hold is not touched: it takes the same time for any number of rows. The caller has locked them.
    """
    between = f"{other}_swap"
    of_other, of_live = existing(tx, other, tables), existing(tx, live, tables)
    statements = [
        sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(between)),
        *_moves(of_other, other, between),
        *_moves(of_live, live, other),
        *_moves(of_other, between, live),
        sql.SQL("DROP SCHEMA {}").format(sql.Identifier(between)),
    ]
    tx.execute(sql.SQL("; ").join(statements))  # one round trip: readers wait
    _look_in(tx, live)
    for view in views.own:
        view.define(tx)
    _look_in(tx, other)
    for view in views.others_own:
        view.define(tx)
    _look_in(tx, "")
    for view in views.elsewhere:
        view.define(tx)
    _look_in(tx, live)


def _moves(tables: Sequence[str], source: str, to: str) -> list[sql.Composed]:
    move = sql.SQL("ALTER TABLE {}.{} SET SCHEMA {}")
    return [move.format(sql.Identifier(source), sql.Identifier(table), sql.Identifier(to)) for table in tables]


def exchange_migrations(tx: Connection, live: str, other: str, components: Sequence[str]) -> None:
    """What is recorded as applied follows the tables that it was applied to."""
    names = {schema: sql.Identifier(schema) for schema in (live, other)}
    rows = {
        schema: tx.execute(sql.SQL(LIVE_MIGRATIONS).format(name), (list(components),)).fetchall()
        for schema, name in names.items()
    }
    for schema, opposite in ((live, other), (other, live)):
        tx.execute(sql.SQL(REMOVE_MIGRATIONS).format(names[schema]), (list(components),))
        for row in rows[opposite]:
            tx.execute(sql.SQL(RECORD_MIGRATION).format(names[schema]), row)


def look_in(tx: Connection, schema: str) -> None:
    """For the rest of the transaction, names without a schema mean this one."""
    _look_in(tx, schema)


def _look_in(tx: Connection, schema: str) -> None:
    tx.execute(SEARCH_PATH, (f'"{schema}"' if schema else "",))
