"""Events as rows, for tests of the store that need no domain."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from infrastructure.event_reader import EventReader
from infrastructure.postgres import Connection, connect
from tests.support.proxy import TcpProxy

INSERT = (
    "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%s, 1, 'thing.done', '{}')"
)


def event(originator_id: str, version: int = 1, topic: str = "thing.done", state: bytes = b"{}") -> StoredEvent:
    return StoredEvent(originator_id, version, topic, state)


def write(session: psycopg.Connection, *originator_ids: str) -> None:
    """Plain SQL, as from a data-fix script."""
    for originator_id in originator_ids:
        session.execute(INSERT, (originator_id,))


def burn(dsn: str, positions: int = 1) -> None:
    """Rolled-back appends: their positions never come."""
    with psycopg.connect(dsn) as session:
        for number in range(positions):
            write(session, f"burned-{number}")
        session.rollback()


@contextmanager
def open_session(dsn: str, application_name: str = "test") -> Iterator[psycopg.Connection]:
    """A session whose transaction ends when the test says so."""
    session = psycopg.connect(dsn, application_name=application_name)
    try:
        yield session
    finally:
        session.close()


def autocommit(dsn: str) -> Connection:
    return connect(dsn, application_name="test")


@contextmanager
def open_reader(dsn: str) -> Iterator[EventReader]:
    with connect(dsn, application_name="test reader") as connection:
        yield EventReader(connection)


def ids(reader: EventReader, after: int = 0, limit: int = 10_000) -> list[str]:
    """Whose events one read delivers."""
    return [event.originator_id for event in reader.read(after, limit).events]


@contextmanager
def proxied(dsn: str) -> Iterator[tuple[TcpProxy, str]]:
    """A proxy in front of the server, and the way through it."""
    fields = conninfo_to_dict(dsn)
    with TcpProxy(str(fields["host"]), int(str(fields["port"]))) as proxy:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", port=proxy.port)
