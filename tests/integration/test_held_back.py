"""Who holds a reader back, and who does not although it looks like it."""

from collections.abc import Iterator
from threading import Event, Timer

import psycopg
import pytest

from infrastructure.held_back import find_hold
from tests.support.stored_events import autocommit, burn, open_reader, open_session, write

STOP = Event()
SHORT = 0.3


@pytest.fixture
def writer(store_dsn: str) -> Iterator[psycopg.Connection]:
    with autocommit(store_dsn) as writer:
        yield writer


def test_the_transaction_that_holds_stored_events_back_is_named(store_dsn: str, writer: psycopg.Connection) -> None:
    with open_session(store_dsn, "month-end fix") as slow, open_reader(store_dsn) as reader:
        write(writer, "delivered")
        write(slow, "open")
        write(writer, "waits")
        hold = find_hold(reader, 0, STOP, SHORT)
        assert hold is not None
        assert (hold.position, [each.application_name for each in hold.by]) == (1, ["month-end fix"])


def test_a_transaction_that_nothing_waits_for_is_no_hold(store_dsn: str, writer: psycopg.Connection) -> None:
    """It has written, and it is open; but nothing is stored behind what it wrote."""
    with open_session(store_dsn) as slow, open_reader(store_dsn) as reader:
        write(writer, "delivered")
        write(slow, "open")
        assert find_hold(reader, 0, STOP, SHORT) is None
        assert len(reader.why()) == 1


def test_one_that_began_after_the_look_is_not_named(store_dsn: str, writer: psycopg.Connection) -> None:
    with (
        open_session(store_dsn, "first") as first,
        open_session(store_dsn, "second") as second,
        open_reader(store_dsn) as reader,
    ):
        write(first, "open")
        write(writer, "waits")
        later = Timer(SHORT / 2, write, (second, "open too"))
        later.start()
        hold = find_hold(reader, 0, STOP, 2 * SHORT)
        later.join()
        assert {each.application_name for each in reader.why()} == {"first", "second"}
        assert hold is not None
        assert [each.application_name for each in hold.by] == ["first"]


def test_a_commit_that_takes_a_moment_is_no_hold(store_dsn: str, writer: psycopg.Connection) -> None:
    with open_session(store_dsn) as slow, open_reader(store_dsn) as reader:
        write(slow, "open")
        write(writer, "waits")
        later = Timer(SHORT, slow.commit)
        later.start()
        assert find_hold(reader, 0, STOP, 20 * SHORT) is None
        later.join()


def test_holes_without_an_open_transaction_are_no_hold(store_dsn: str, writer: psycopg.Connection) -> None:
    burn(store_dsn, 3)
    write(writer, "delivered")
    with open_reader(store_dsn) as reader:
        assert find_hold(reader, 0, STOP, SHORT) is None


def test_a_hold_is_found_behind_many_pages_of_what_can_be_delivered(store_dsn: str, writer: psycopg.Connection) -> None:
    writer.execute(
        "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
        " SELECT n::text, 1, 't', '{}' FROM generate_series(1, 3500) AS n"
    )
    with open_session(store_dsn) as slow, open_reader(store_dsn) as reader:
        write(slow, "open")
        write(writer, "waits")
        hold = find_hold(reader, 0, STOP, SHORT)
        assert hold is not None
        assert hold.position == 3500
