"""The PostgreSQL server the tests share, and databases in it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from counterfoil.embedded import EmbeddedPostgres

ADDRESS = "COUNTERFOIL_TEST_POSTGRES_DSN"


class PostgresServer:
    """A running server. It may be one of others: everything we create there has a unique name."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def dsn(self, database: str = "postgres") -> str:
        """Connection string of a database of this server."""
        return make_conninfo(self._dsn, dbname=database)

    @contextmanager
    def database(self, name: str, template: str | None = None) -> Iterator[str]:
        """The name of a fresh database that begins with `name`; dropped at the end, whoever is connected."""
        unique = f"{name}_{secrets.token_hex(5)}"
        copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
        self._run(sql.SQL("CREATE DATABASE {}{}").format(sql.Identifier(unique), copied))
        try:
            yield unique
        finally:
            self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(unique)))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """The server at the address in the environment, else an embedded one.

    Raises ServiceBinariesMissing: without PostgreSQL there is nothing to test, here and in CI.
    """
    address = os.environ.get(ADDRESS)
    if address:
        yield PostgresServer(address)
    else:
        with EmbeddedPostgres() as server:
            yield PostgresServer(server.dsn())
