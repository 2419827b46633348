"""What the live tables have beyond their migrations: grants, owners, indexes, views. It survives a swap, or the swap
is refused before anything begins."""

from collections.abc import Sequence

from psycopg import Connection, sql

# The server writes the statements, so that it quotes the names.
REVOKE = """
    SELECT DISTINCT format('REVOKE ALL ON TABLE %%I.%%I FROM %%s', %(to)s::text, relname,
                           CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
    FROM pg_class, aclexplode(relacl)
    WHERE relnamespace = to_regnamespace(quote_ident(%(to)s)) AND relname = ANY (%(tables)s) AND grantee <> relowner
"""
GRANT = """
    WITH live AS (
        SELECT oid, relname, relacl FROM pg_class
        WHERE relnamespace = to_regnamespace(quote_ident(%(from)s)) AND relname = ANY (%(tables)s)
    ), given AS (
        SELECT relname, NULL::name AS attname, given.* FROM live, aclexplode(relacl) AS given
        UNION ALL
        SELECT relname, attname, given.*
        FROM live JOIN pg_attribute ON attrelid = live.oid, aclexplode(attacl) AS given
    )
    SELECT format('GRANT %%s%%s ON TABLE %%I.%%I TO %%s%%s', privilege_type, ' (' || quote_ident(attname) || ')',
                  %(to)s::text, relname, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
                  CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END)
    FROM given
"""
GRANT_SEQUENCES = """
    WITH owned AS (
        SELECT live.relname, attname, sequence.relacl
        FROM pg_class AS live
        JOIN pg_depend ON refobjid = live.oid AND refclassid = 'pg_class'::regclass AND classid = 'pg_class'::regclass
                      AND deptype IN ('a', 'i')
        JOIN pg_class AS sequence ON sequence.oid = objid AND sequence.relkind = 'S'
        JOIN pg_attribute ON attrelid = live.oid AND attnum = refobjsubid
        WHERE live.relnamespace = to_regnamespace(quote_ident(%(from)s)) AND live.relname = ANY (%(tables)s)
    )
    SELECT format('GRANT %%s ON SEQUENCE %%s TO %%s', privilege_type, pg_get_serial_sequence(
                      quote_ident(%(to)s) || '.' || quote_ident(relname), attname),
                  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
    FROM owned, aclexplode(relacl)
"""
OWNERS = """
    SELECT format('ALTER TABLE %%I.%%I OWNER TO %%s', %(to)s::text, live.relname, live.relowner::regrole)
    FROM pg_class AS live JOIN pg_class AS other USING (relname)
    WHERE live.relnamespace = to_regnamespace(quote_ident(%(from)s))
      AND other.relnamespace = to_regnamespace(quote_ident(%(to)s))
      AND live.relname = ANY (%(tables)s) AND live.relowner <> other.relowner
"""

# An index of a constraint comes with the constraint, one of a partition with that of its parent.
MISSING_INDEXES = """
    SELECT replace(pg_get_indexdef(index.oid), format(' ON %%I.%%I ', %(from)s::text, live.relname),
                   format(' ON %%I.%%I ', %(to)s::text, live.relname))
    FROM pg_class AS live
    JOIN pg_index ON indrelid = live.oid
    JOIN pg_class AS index ON index.oid = indexrelid
    WHERE live.relnamespace = to_regnamespace(quote_ident(%(from)s)) AND live.relname = ANY (%(tables)s) AND indisvalid
      AND NOT index.relispartition
      AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = index.oid AND conrelid = live.oid)
      AND to_regclass(format('%%I.%%I', %(to)s::text, index.relname)) IS NULL
      AND to_regclass(format('%%I.%%I', %(to)s::text, live.relname)) IS NOT NULL
    ORDER BY index.relname
"""

WOULD_BE_LOST = """
    WITH live AS (
        SELECT pg_class.* FROM pg_class
        WHERE relnamespace = to_regnamespace(quote_ident(%(from)s)) AND relname = ANY (%(tables)s)
    )
    SELECT format('trigger %%I of %%I', tgname, relname) FROM live JOIN pg_trigger ON tgrelid = live.oid
    WHERE NOT tgisinternal AND NOT EXISTS (
        SELECT FROM pg_trigger AS other
        WHERE other.tgrelid = to_regclass(format('%%I.%%I', %(to)s::text, relname))
          AND other.tgname = pg_trigger.tgname)
    UNION ALL
    SELECT format('rule %%I of %%I', rulename, relname) FROM live JOIN pg_rewrite ON ev_class = live.oid
    UNION ALL
    SELECT format('policy %%I of %%I', polname, relname) FROM live JOIN pg_policy ON polrelid = live.oid
    UNION ALL
    SELECT format('publication %%I with %%I', pubname, relname)
    FROM live JOIN pg_publication_rel ON prrelid = live.oid JOIN pg_publication ON pg_publication.oid = prpubid
    UNION ALL
    SELECT format('statistics %%I of %%I', stxname, relname) FROM live JOIN pg_statistic_ext ON stxrelid = live.oid
    WHERE NOT EXISTS (
        SELECT FROM pg_statistic_ext AS other
        WHERE other.stxrelid = to_regclass(format('%%I.%%I', %(to)s::text, relname))
          AND other.stxname = pg_statistic_ext.stxname)
    UNION ALL
    SELECT format('foreign key %%I of %%s', conname, conrelid::regclass)
    FROM live JOIN pg_constraint ON confrelid = live.oid WHERE contype = 'f' AND conrelid NOT IN (SELECT oid FROM live)
    UNION ALL
    SELECT format('foreign key %%I of %%I', conname, relname)
    FROM live JOIN pg_constraint ON conrelid = live.oid WHERE contype = 'f' AND confrelid NOT IN (SELECT oid FROM live)
    UNION ALL
    SELECT format('constraint %%I of %%I', conname, relname) FROM live JOIN pg_constraint ON conrelid = live.oid
    WHERE contype <> 'n' AND NOT %(changed)s AND NOT EXISTS (
        SELECT FROM pg_constraint AS other
        WHERE other.conrelid = to_regclass(format('%%I.%%I', %(to)s::text, relname))
          AND other.conname = pg_constraint.conname)
    UNION ALL
    SELECT DISTINCT format('materialized view %%s on %%I', viewed.oid::regclass, live.relname)
    FROM live
    JOIN pg_depend ON refobjid = live.oid AND refclassid = 'pg_class'::regclass AND classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite ON pg_rewrite.oid = objid JOIN pg_class AS viewed ON viewed.oid = ev_class AND viewed.relkind = 'm'
    UNION ALL
    SELECT format('function %%s on %%I', objid::regprocedure, relname) FROM live
    JOIN pg_depend ON refobjid = live.oid AND refclassid = 'pg_class'::regclass AND classid = 'pg_proc'::regclass
"""


def what_would_be_lost(
    connection: Connection, live: str, other: str, tables: Sequence[str], changed: bool
) -> list[str]:
    """What hangs on the live tables and would not on those that take their place.

    changed: the two are of different versions, so that they may have different constraints.
    """
    values = {"from": live, "to": other, "tables": list(tables), "changed": changed}
    return [name for (name,) in connection.execute(WOULD_BE_LOST, values)]


def copy_indexes(connection: Connection, live: str, other: str, tables: Sequence[str]) -> None:
    """Those that somebody has added to the live tables by hand."""
    _run_all(connection, MISSING_INDEXES, live, other, tables)


def copy_grants(tx: Connection, live: str, other: str, tables: Sequence[str]) -> None:
    """The other tables are owned by and granted to whom the live ones are, and nobody else."""
    for statement in (REVOKE, GRANT, GRANT_SEQUENCES, OWNERS):
        _run_all(tx, statement, live, other, tables)


def _run_all(connection: Connection, statement: str, live: str, other: str, tables: Sequence[str]) -> None:
    values = {"from": live, "to": other, "tables": list(tables)}
    for (made,) in connection.execute(statement.encode(), values).fetchall():
        connection.execute(sql.SQL(made) if made else b"")
