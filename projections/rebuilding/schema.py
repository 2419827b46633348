"""The other tables, in a schema of their own: made by the projection's own migrations, and removed."""

from psycopg import Connection, sql

from infrastructure.migrate import check, migrate
from projections import effects
from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.target import FRAMEWORK, Target

CURRENT_SCHEMA = "SELECT current_schema()"

TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind IN ('r', 'p') ORDER BY relname
"""

# They would stay behind in the other schema when the tables that need them move.
NOT_MOVED = """
    SELECT 'type ' || typname FROM pg_type
    WHERE typnamespace = to_regnamespace(quote_ident(%(schema)s)) AND (
        typtype IN ('e', 'd', 'r') OR typtype = 'c' AND typrelid IN (SELECT oid FROM pg_class WHERE relkind = 'c'))
    UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = to_regnamespace(quote_ident(%(schema)s))
    UNION ALL SELECT 'materialized view ' || relname FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND relkind = 'm'
    UNION ALL SELECT 'sequence ' || relname FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND relkind = 'S' AND NOT EXISTS (
        SELECT FROM pg_depend WHERE objid = pg_class.oid AND classid = 'pg_class'::regclass AND deptype IN ('a', 'i')
    )
    ORDER BY 1
"""

# Ids of the events that the other tables hold, in the order in which they came to hold them.
REBUILT_EVENTS = """
    CREATE TABLE rebuilt_events (
        place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        event_id text COLLATE "C" NOT NULL
    )
"""
EACH_ONCE = "CREATE UNIQUE INDEX ON rebuilt_events (event_id)"


def live_schema(connection: Connection) -> str:
    """Where a connection of the projection's finds and makes its tables."""
    (name,) = connection.execute(CURRENT_SCHEMA).fetchone() or (None,)
    if name is None:
        raise RuntimeError("the search_path names no schema that exists")
    return str(name)


def create(target: Target, connection: Connection, repeats: bool) -> list[str]:
    """Makes the schema anew, empty; returns the names of the tables that are made from events.

    repeats: whether an event may come more than once, so that its id must be found fast.

    Raises RebuildRefused, and what migrating raises: SchemaOutdated when the live tables of the framework are.
    """
    framework = [each for each in target.loaded.migrations if each.component in FRAMEWORK]
    check(target.dsn, framework)
    drop(target, connection, [])
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target.other_schema)))
    # Handlers ask for effects, and need a table to name; nothing is written to it.
    migrate(target.dsn_of_other(), [each for each in framework if each.component == effects.COMPONENT])
    tables, others = _tables(connection, target.other_schema), _not_moved(connection, target.other_schema)
    migrate(target.dsn_of_other(), target.own_migrations)
    own = sorted(_tables(connection, target.other_schema) - tables - {"schema_migrations", *target.projection.kept})
    if stuck := sorted(_not_moved(connection, target.other_schema) - others):
        drop(target, connection, [])
        raise RebuildRefused(target.name, f"its migrations make what a swap cannot move: {', '.join(stuck)}")
    if not own:
        drop(target, connection, [])
        raise RebuildRefused(target.name, "none of its tables is made from events")
    with target.connect_other() as other:
        other.execute(REBUILT_EVENTS)
        if repeats:
            other.execute(EACH_ONCE)
    return own


def drop(target: Target, connection: Connection, tables: list[str]) -> None:
    """tables: those that are dropped first, and only when nothing outside of the schema depends on them.

    Raises psycopg.errors.DependentObjectsStillExist, having dropped nothing.
    """
    schema = sql.Identifier(target.other_schema)
    with connection.transaction():
        for (view,) in connection.execute(VIEWS, (target.other_schema,)).fetchall():
            connection.execute(sql.SQL("DROP VIEW {}.{}").format(schema, sql.Identifier(view)))
        if tables:
            names = sql.SQL(", ").join(sql.SQL("{}.{}").format(schema, sql.Identifier(table)) for table in tables)
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {} RESTRICT").format(names))
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))


VIEWS = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind = 'v' ORDER BY oid DESC
"""


def _tables(connection: Connection, schema: str) -> set[str]:
    return {name for (name,) in connection.execute(TABLES, (schema,))}


def _not_moved(connection: Connection, schema: str) -> set[str]:
    return {name for (name,) in connection.execute(NOT_MOVED, {"schema": schema})}
