"""Reading over restarts, prepared transactions and standbys: on a server of the test's own."""

from pathlib import Path

import psycopg
import pytest

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.event_reader import EventReader, NotAPrimary
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import Connection, connect
from tests.support.stored_events import autocommit, burn, ids, open_reader, open_session, write


def store_on(server: EmbeddedPostgres) -> str:
    dsn = server.create_database("store")
    migrate(dsn, STORE_MIGRATIONS)
    return dsn


def test_a_hole_at_the_head_of_the_stream_survives_a_crash_of_the_server(own_postgres: EmbeddedPostgres) -> None:
    dsn = store_on(own_postgres)
    with autocommit(dsn) as writer:
        write(writer, "before")
    slow = psycopg.connect(dsn)
    write(slow, "lost")
    with autocommit(dsn) as writer, open_reader(dsn) as reader:
        write(writer, "after the hole")
        assert ids(reader) == ["before"]
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            reader.read(0, 10)
    own_postgres.start()
    with autocommit(dsn) as writer, open_reader(dsn) as reader:
        assert ids(reader) == ["before", "after the hole"]
        write(writer, "after the crash")
        assert ids(reader) == ["before", "after the hole", "after the crash"]


def test_a_prepared_transaction_holds_the_reader_until_it_ends(own_postgres: EmbeddedPostgres) -> None:
    dsn = store_on(own_postgres)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_prepared_transactions = 10")
    own_postgres.restart()
    with autocommit(dsn) as writer, open_reader(dsn) as reader, open_session(dsn) as slow:
        write(slow, "prepared")
        write(writer, "later")
        assert ids(reader) == []
        slow.execute("PREPARE TRANSACTION 'month-end'")
        assert ids(reader) == []
        (holder,) = reader.why()
        assert (holder.pid, holder.application_name, holder.state) == (None, "month-end", "prepared")
        assert holder.transaction_age is not None
        own_postgres.restart()
    with autocommit(dsn) as writer, open_reader(dsn) as reader:
        assert ids(reader) == []
        writer.execute("COMMIT PREPARED 'month-end'")
        assert ids(reader) == ["prepared", "later"]


def test_prepared_transactions_that_never_pause_do_not_hold_the_reader_for_ever(
    own_postgres: EmbeddedPostgres,
) -> None:
    dsn = store_on(own_postgres)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_prepared_transactions = 10")
    own_postgres.restart()
    burn(dsn)
    with autocommit(dsn) as writer, open_reader(dsn) as reader, open_session(dsn) as slow:
        write(slow, "one")
        write(writer, "waits")
        assert ids(reader) == []
        slow.execute("PREPARE TRANSACTION 'one'")
        assert ids(reader) == []
        write(slow, "two")
        slow.execute("PREPARE TRANSACTION 'two'")
        writer.execute("COMMIT PREPARED 'one'")
        assert ids(reader) == ["one", "waits"]
        writer.execute("ROLLBACK PREPARED 'two'")


def test_a_standby_is_refused(tmp_path: Path) -> None:
    """Locks are not replicated: a standby cannot know who writes."""
    tmp_path.chmod(0o755)
    with EmbeddedPostgres(tmp_path / "data") as server:
        dsn = store_on(server)
        server.kill()
        (tmp_path / "data" / "cluster" / "standby.signal").touch()
        server.start()
        with pytest.raises(psycopg.OperationalError):
            connect(dsn, application_name="test")
        with Connection.connect(dsn, autocommit=True) as connection, pytest.raises(NotAPrimary):
            EventReader(connection)
