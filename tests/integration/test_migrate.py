"""Migrations: each file once, by one node at a time, and nobody waits long for them."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from infrastructure.migrate import (
    STORE_MIGRATIONS,
    Applied,
    MigrationChanged,
    Migrations,
    SchemaBusy,
    SchemaNewer,
    SchemaOutdated,
    check,
    migrate,
    status,
)
from tests.support.stored_events import autocommit, open_session
from tests.support.wait import eventually

CONCURRENTLY = """-- no transaction
DROP INDEX CONCURRENTLY IF EXISTS things_name;
CREATE INDEX CONCURRENTLY things_name ON things (name);
"""


@pytest.fixture
def things(tmp_path: Path) -> Callable[..., tuple[Migrations]]:
    """Writes the files of a component: `things(create="CREATE TABLE ...", fill="INSERT ...")`."""

    def write(**files: str) -> tuple[Migrations]:
        for number, (name, text) in enumerate(files.items(), 1):
            (tmp_path / f"{number:04}_{name}.sql").write_text(text)
        return (Migrations("things", tmp_path),)

    return write


Things = Callable[..., tuple[Migrations]]

CREATE = "CREATE TABLE things (name text)"


def names(dsn: str) -> list[str]:
    with autocommit(dsn) as session:
        return [name for (name,) in session.execute("SELECT name FROM things ORDER BY name")]


# --- Each file once -----------------------------------------------------------------------------------


def test_the_store_is_migrated_from_nothing_and_then_is_up_to_date(empty_dsn: str) -> None:
    files = [each.name for each in migrate(empty_dsn, STORE_MIGRATIONS)]
    assert files[0] == "0001_stored_events.sql"
    assert migrate(empty_dsn, STORE_MIGRATIONS) == []
    assert [each.name for each in status(empty_dsn, STORE_MIGRATIONS)] == files
    check(empty_dsn, STORE_MIGRATIONS)


def test_files_are_applied_in_order_and_new_ones_later(empty_dsn: str, things: Things) -> None:
    assert migrate(empty_dsn, things(create=CREATE)) == [Applied("things", 1, "0001_create.sql")]
    more = things(create=CREATE, fill="INSERT INTO things VALUES ('a'); INSERT INTO things VALUES ('b')")
    assert [state.applied_at is not None for state in status(empty_dsn, more)] == [True, False]
    assert migrate(empty_dsn, more) == [Applied("things", 2, "0002_fill.sql")]
    assert names(empty_dsn) == ["a", "b"]


def test_components_number_their_files_independently(empty_dsn: str, things: Things) -> None:
    applied = migrate(empty_dsn, [*STORE_MIGRATIONS, *things(create=CREATE)])
    assert [(each.component, each.version) for each in applied][-2:] == [("store", len(applied) - 1), ("things", 1)]


def test_nodes_that_migrate_at_once_apply_each_file_once(empty_dsn: str, things: Things) -> None:
    both = [*STORE_MIGRATIONS, *things(create=CREATE, fill="INSERT INTO things VALUES ('a')", index=CONCURRENTLY)]
    start = threading.Barrier(6)

    def node(_: int) -> list[Applied]:
        start.wait()
        return migrate(empty_dsn, both)

    with ThreadPoolExecutor(6) as executor:
        applied = [each for of_one in executor.map(node, range(6)) for each in of_one]
    assert len(applied) == len(set(applied)) == len(status(empty_dsn, both))
    assert names(empty_dsn) == ["a"]


def test_a_file_that_fails_leaves_nothing_behind_and_may_be_corrected(empty_dsn: str, things: Things) -> None:
    broken = things(create=CREATE, fill="INSERT INTO things VALUES ('a'); INSERT INTO nothing VALUES ('b')")
    with pytest.raises(psycopg.errors.UndefinedTable):
        migrate(empty_dsn, broken)
    assert names(empty_dsn) == []
    assert migrate(empty_dsn, things(create=CREATE, fill="INSERT INTO things VALUES ('a')"))
    assert names(empty_dsn) == ["a"]


# --- Code and database that do not fit ----------------------------------------------------------------


def test_a_process_does_not_start_on_an_outdated_schema(empty_dsn: str, things: Things) -> None:
    with pytest.raises(SchemaOutdated, match="db migrate") as outdated:
        check(empty_dsn, STORE_MIGRATIONS)
    assert outdated.value.missing[0] == ("store", "0001_stored_events.sql")
    migrate(empty_dsn, things(create=CREATE))
    with pytest.raises(SchemaOutdated) as outdated:
        check(empty_dsn, things(create=CREATE, fill="SELECT 1"))
    assert outdated.value.missing == (("things", "0002_fill.sql"),)


def test_a_file_that_was_edited_after_it_was_applied_is_refused(empty_dsn: str, things: Things) -> None:
    migrate(empty_dsn, things(create=CREATE))
    edited = things(create="CREATE TABLE things (name text, more text)", fill="INSERT INTO things VALUES ('a')")
    for use in (migrate, status, check):
        with pytest.raises(MigrationChanged, match=r"things/0001_create\.sql"):
            use(empty_dsn, edited)
    assert names(empty_dsn) == []


def test_older_code_does_not_migrate_a_newer_database_but_may_run_on_it(
    empty_dsn: str, things: Things, tmp_path: Path
) -> None:
    migrate(empty_dsn, things(create=CREATE, fill="SELECT 1"))
    (tmp_path / "0002_fill.sql").unlink()
    older = things(create=CREATE)
    with pytest.raises(SchemaNewer) as newer:
        migrate(empty_dsn, older)
    assert newer.value.versions == (2,)
    check(empty_dsn, older)


def test_two_files_of_one_number_are_refused(empty_dsn: str, things: Things, tmp_path: Path) -> None:
    (tmp_path / "0001_other.sql").write_text("SELECT 1")
    with pytest.raises(ValueError, match="same number"):
        migrate(empty_dsn, things(create=CREATE))


# --- While the system runs ----------------------------------------------------------------------------


def test_nobody_queues_behind_a_waiting_migration_for_more_than_two_seconds(empty_dsn: str, things: Things) -> None:
    """A long transaction holds the table; the migration waits for it, and everybody else behind the migration."""
    migrate(empty_dsn, things(create=CREATE))
    longest = 0.0
    with open_session(empty_dsn) as long, autocommit(empty_dsn) as others, ThreadPoolExecutor(1) as executor:
        long.execute("SELECT * FROM things")
        change = things(create=CREATE, alter="ALTER TABLE things ADD COLUMN more text")
        migrating = executor.submit(migrate, empty_dsn, change)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            began = time.monotonic()
            others.execute("INSERT INTO things VALUES ('a')")
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.01)
        assert not migrating.done()
        long.rollback()
        assert len(migrating.result(30)) == 1
    assert 1.0 < longest < 2.5


def test_a_lock_that_is_not_to_be_had_is_reported_and_nothing_is_half_done(empty_dsn: str, things: Things) -> None:
    migrate(empty_dsn, things(create=CREATE))
    change = things(create=CREATE, alter="INSERT INTO things VALUES ('half'); ALTER TABLE things ADD COLUMN more text")
    with open_session(empty_dsn) as long:
        long.execute("SELECT * FROM things")
        with pytest.raises(SchemaBusy):
            migrate(empty_dsn, change, patience=0.1)
        assert names(empty_dsn) == []
        long.rollback()
    assert len(migrate(empty_dsn, change)) == 1


def test_an_index_build_that_was_interrupted_is_done_again(empty_dsn: str, things: Things) -> None:
    """It waits for an old transaction and is killed there, which leaves an invalid index."""
    migrate(empty_dsn, things(create=CREATE))
    indexed = things(create=CREATE, index=CONCURRENTLY)
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('things_name')"
    building = "SELECT pid FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
    with open_session(empty_dsn) as old, autocommit(empty_dsn) as admin, ThreadPoolExecutor(1) as executor:
        old.execute("INSERT INTO things VALUES ('a')")
        migrating = executor.submit(migrate, empty_dsn, indexed)
        (pid,) = eventually(lambda: admin.execute(building).fetchone())
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            migrating.result(10)
        assert admin.execute(valid).fetchone() == (False,)
        old.commit()
        assert migrate(empty_dsn, indexed) == [Applied("things", 2, "0002_index.sql")]
        assert admin.execute(valid).fetchone() == (True,)


def test_an_index_is_built_while_another_node_waits_to_migrate_and_a_transaction_is_open(
    empty_dsn: str, things: Things
) -> None:
    """A node that waited inside a statement would have a snapshot, which the build waits for in turn."""
    migrate(empty_dsn, things(create=CREATE))
    indexed = things(create=CREATE, index=CONCURRENTLY)
    building = "SELECT pid, index_relid FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
    with open_session(empty_dsn) as old, autocommit(empty_dsn) as admin, ThreadPoolExecutor(2) as executor:
        old.execute("INSERT INTO things VALUES ('a')")
        first = executor.submit(migrate, empty_dsn, indexed)
        begun = eventually(lambda: admin.execute(building).fetchone())
        second = executor.submit(migrate, empty_dsn, indexed)
        time.sleep(2.5)  # longer than the lock timeout of other migrations: nobody queues behind this wait
        assert admin.execute(building).fetchone() == begun
        old.commit()
        assert len(first.result(15)) == 1
        assert second.result(15) == []
