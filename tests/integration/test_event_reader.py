"""Reading by position: each committed event exactly once, in order, whatever writers do."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from infrastructure.event_reader import EventReader
from tests.support.databases import PostgresServer
from tests.support.stored_events import autocommit, burn, ids, open_reader, open_session, write
from tests.support.wait import eventually


@pytest.fixture
def reader(store_dsn: str) -> Iterator[EventReader]:
    with open_reader(store_dsn) as reader:
        yield reader


@pytest.fixture
def writer(store_dsn: str) -> Iterator[psycopg.Connection]:
    """Commits each event by itself."""
    with autocommit(store_dsn) as writer:
        yield writer


# --- Uncommitted lower positions ----------------------------------------------------------------------


def test_an_uncommitted_lower_position_is_never_passed(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    with open_session(store_dsn) as slow:
        write(slow, "a")
        write(writer, "b")
        for _ in range(3):
            page = reader.read(0, 100)
            assert (list(page.events), page.settled) == ([], False)
            assert [holder.pid for holder in page.held_by] == [slow.info.backend_pid]
        slow.commit()
    assert ids(reader) == ["a", "b"]


def test_what_comes_before_the_unsettled_position_is_delivered(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    write(writer, "first", "second")
    with open_session(store_dsn) as slow:
        write(slow, "slow")
        write(writer, "after")
        assert ids(reader) == ["first", "second"]
        slow.rollback()
    assert ids(reader) == ["first", "second", "after"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO stored_events (originator_id, originator_version, topic, state) SELECT 'a', 1, 't', '{}'",
        "LOCK TABLE stored_events IN EXCLUSIVE MODE;"
        "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('a', 1, 't', '{}')",
        "MERGE INTO stored_events USING (VALUES (1)) AS new (n) ON false WHEN NOT MATCHED THEN"
        " INSERT (originator_id, originator_version, topic, state) VALUES ('a', n, 't', '{}')",
        "WITH new AS (INSERT INTO stored_events (originator_id, originator_version, topic, state)"
        " VALUES ('a', 1, 't', '{}') RETURNING 1) SELECT * FROM new",
        "DO $$ BEGIN INSERT INTO stored_events (originator_id, originator_version, topic, state)"
        " VALUES ('a', 1, 't', '{}'); END $$",
        "SAVEPOINT one; INSERT INTO stored_events (originator_id, originator_version, topic, state)"
        " VALUES ('a', 1, 't', '{}'); RELEASE SAVEPOINT one",
    ],
)
def test_every_way_to_insert_is_seen_while_it_is_open(store_dsn: str, reader: EventReader, statement: str) -> None:
    with open_session(store_dsn) as slow, autocommit(store_dsn) as later:
        later.execute("SELECT setval('stored_events_position_seq', 1)")
        slow.execute(statement.encode())
        if "LOCK" in statement:  # nobody else can write now: the higher position comes from the same transaction
            burn_inside(slow)
            assert ids(reader) == []
        else:
            write(later, "later")
            assert ids(reader) == []
        slow.commit()
    assert ids(reader)[0] == "a"


def burn_inside(session: psycopg.Connection) -> None:
    with pytest.raises(ZeroDivisionError), session.transaction():
        write(session, "never")
        raise ZeroDivisionError


def test_a_copy_that_is_under_way_is_seen(store_dsn: str, reader: EventReader, writer: psycopg.Connection) -> None:
    statement = "COPY stored_events (originator_id, originator_version, topic, state) FROM STDIN"
    with open_session(store_dsn) as slow:
        with slow.cursor().copy(statement) as copy:
            copy.write_row(("copied", 1, "t", b"{}"))
        write(writer, "later")
        assert ids(reader) == []
        slow.commit()
    assert ids(reader) == ["copied", "later"]


def test_an_insert_rolled_back_to_a_savepoint_is_gone_for_good(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    with open_session(store_dsn) as slow:
        slow.execute("SELECT 1")
        burn_inside(slow)
        write(writer, "later")
        assert ids(reader) == ["later"]


def test_a_killed_writer_holds_nothing(store_dsn: str, reader: EventReader, writer: psycopg.Connection) -> None:
    with open_session(store_dsn) as slow:
        write(slow, "killed")
        write(writer, "later")
        assert ids(reader) == []
        writer.execute("SELECT pg_terminate_backend(%s, 5000)", (slow.info.backend_pid,))
    assert ids(reader) == ["later"]


# --- Positions that never come ------------------------------------------------------------------------


def test_a_burned_position_never_stalls_the_reader(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    write(writer, "first")
    burn(store_dsn)
    write(writer, "second")
    assert ids(reader) == ["first", "second"]


def test_the_first_event_may_stand_at_4001(store_dsn: str, reader: EventReader, writer: psycopg.Connection) -> None:
    writer.execute("SELECT setval('stored_events_position_seq', 4000)")
    write(writer, "first")
    page = reader.read(0, 100)
    assert [event.position for event in page.events] == [4001]
    assert page.settled


def test_a_thousand_burned_positions_and_a_jump_of_a_million_are_passed_in_one_read(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    write(writer, "first")
    burn(store_dsn, 1_000)
    write(writer, "second")
    writer.execute("SELECT setval('stored_events_position_seq', 1000000 + lastval())")
    write(writer, "third")
    assert ids(reader, limit=100) == ["first", "second", "third"]


def test_positions_are_64_bit_from_end_to_end(reader: EventReader, writer: psycopg.Connection) -> None:
    writer.execute("SELECT setval('stored_events_position_seq', 2147483646)")
    write(writer, "last of 32 bit", "first of 64 bit")
    page = reader.read(2_147_483_647, 10)
    assert [(event.originator_id, event.position) for event in page.events] == [("first of 64 bit", 2_147_483_648)]
    assert reader.highest_position() == 2_147_483_648


def test_pages_that_begin_or_end_at_a_hole_lose_nothing(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    names = [f"{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        burn(store_dsn, number % 3)
        write(writer, name)
    for limit in (1, 2, 3, 7):
        read, after = [], 0
        while events := reader.read(after, limit).events:
            read += [event.originator_id for event in events]
            after = events[-1].position
        assert read == names


# --- Progress while others write ----------------------------------------------------------------------


def test_writers_that_never_pause_do_not_hold_the_reader_for_ever(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    """At every moment somebody holds the lock; only those of the first look count."""
    burn(store_dsn)
    with open_session(store_dsn) as first, open_session(store_dsn) as second:
        write(first, "open")
        write(writer, "waits")
        assert ids(reader) == []
        write(second, "opened later")
        first.commit()
        assert ids(reader) == ["open", "waits"]
        write(writer, "waits for the second")
        assert ids(reader, after=3) == []
        second.rollback()
        assert ids(reader, after=3) == ["waits for the second"]


# --- Whom the reader does not wait for ----------------------------------------------------------------


def test_a_writer_of_another_database_never_holds_the_reader_back(
    store_dsn: str, postgres: PostgresServer, _store_template: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    """A copy of the same template: its table has the same object id, so the database must be compared too."""
    with postgres.database("other_store", _store_template) as other, open_session(postgres.dsn(other)) as elsewhere:
        write(elsewhere, "elsewhere")
        burn(store_dsn)
        write(writer, "here")
        assert ids(reader) == ["here"]
        elsewhere.rollback()


def test_readers_and_writers_of_other_tables_never_hold_the_reader_back(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection
) -> None:
    writer.execute("CREATE TABLE notes (note text)")
    with open_session(store_dsn) as noting, open_session(store_dsn) as looking, open_session(store_dsn) as dumping:
        noting.execute("INSERT INTO notes VALUES ('open')")
        looking.execute("SELECT * FROM stored_events FOR UPDATE")
        dumping.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        dumping.execute("SELECT count(*) FROM stored_events")
        burn(store_dsn)
        write(writer, "now")
        assert ids(reader) == ["now"]


@pytest.mark.parametrize("work", ["VACUUM stored_events", "ANALYZE stored_events"])
def test_maintenance_never_holds_the_reader_back(
    store_dsn: str, reader: EventReader, writer: psycopg.Connection, work: str
) -> None:
    """What it locks the table with, held open."""
    with open_session(store_dsn) as maintenance:
        maintenance.execute("LOCK TABLE stored_events IN SHARE UPDATE EXCLUSIVE MODE")
        burn(store_dsn)
        write(writer, "now")
        assert ids(reader) == ["now"]


# --- Saying who holds it back -------------------------------------------------------------------------


def test_it_says_who_holds_it_back(store_dsn: str, reader: EventReader) -> None:
    assert reader.why() == []
    with open_session(store_dsn, "month-end fix") as slow:
        write(slow, "a")
        (holder,) = reader.why()
        assert holder.pid == slow.info.backend_pid
        assert holder.application_name == "month-end fix"
        assert holder.state == "idle in transaction"
        assert holder.query is not None
        assert holder.query.startswith("INSERT INTO stored_events")
        assert holder.query_start is not None
        assert holder.transaction_age is not None
        assert timedelta(0) <= holder.transaction_age < timedelta(minutes=1)
        slow.rollback()
    eventually(lambda: reader.why() == [])


# --- What it needs ------------------------------------------------------------------------------------


def test_it_refuses_a_connection_that_would_keep_its_snapshot(store_dsn: str) -> None:
    with autocommit(store_dsn) as connection:
        connection.autocommit = False
        with pytest.raises(ValueError, match="autocommit"):
            EventReader(connection)


def test_each_store_has_a_namespace_of_its_own_for_ever(store_dsn: str, empty_dsn: str, reader: EventReader) -> None:
    from infrastructure.migrate import STORE_MIGRATIONS, migrate

    migrate(empty_dsn, STORE_MIGRATIONS)
    with open_reader(empty_dsn) as other:
        assert other.namespace() != reader.namespace()
    with open_reader(store_dsn) as again:
        assert again.namespace() == reader.namespace()
