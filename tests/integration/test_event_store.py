"""Appending: one statement, one round trip, nobody queues; and what is stored stays as it is."""

import contextlib
import itertools
import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError

from domain.orders.application import Orders
from domain.orders.commands import LineItem, PlaceOrder
from infrastructure.event_reader import READ_EVENTS
from infrastructure.event_store import LOAD_BACKWARDS, LOAD_FORWARDS, PostgresRecorder, store_env
from infrastructure.postgres import Connection, Timeouts
from infrastructure.settings import SettingsError
from tests.support.stored_events import autocommit, burn, event, open_session, write
from tests.support.wait import eventually


@pytest.fixture
def recorder(store_dsn: str) -> Iterator[PostgresRecorder]:
    recorder = PostgresRecorder(store_dsn, connections=4, patience=5)
    with contextlib.closing(recorder):
        yield recorder


def order(order_id: str) -> PlaceOrder:
    line = LineItem(sku="sku", quantity=2, unit_price_minor=1345)
    return PlaceOrder(order_id=order_id, customer_id="customer", currency="EUR", lines=(line,), placed_at=None)


# --- Through an application ---------------------------------------------------------------------------


def test_an_order_placed_in_one_process_is_there_in_the_next(store_dsn: str) -> None:
    with Orders(env=store_env(store_dsn)) as orders:
        assert orders.place(order("o-1")).changed
        assert not orders.place(order("o-1")).changed
    with Orders(env=store_env(store_dsn)) as orders:
        placed = orders.get("o-1")
        assert placed is not None
        assert placed.total_minor == 2690


def test_the_database_may_be_named_in_the_environment(store_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_STORE_DSN", store_dsn)
    with Orders(env={"PERSISTENCE_MODULE": "infrastructure.event_store:Factory"}) as orders:
        assert orders.place(order("o-1")).changed


def test_without_a_database_the_error_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERFOIL_STORE_DSN", raising=False)
    with pytest.raises(SettingsError, match="COUNTERFOIL_STORE_DSN"):
        Orders(env={"PERSISTENCE_MODULE": "infrastructure.event_store:Factory"})


def test_of_many_who_place_the_same_order_at_once_one_stores_it(store_dsn: str) -> None:
    start, changed = threading.Barrier(8), []
    with Orders(env=store_env(store_dsn, connections=8)) as orders:

        def place() -> None:
            start.wait()
            changed.append(orders.place(order("o-1")).changed)

        threads = [threading.Thread(target=place) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(changed) == [False] * 7 + [True]
        assert orders.recorder.max_notification_id() is not None
        assert len(orders.recorder.select_events("o-1")) == 1


# --- What an append does on the wire and in the server ------------------------------------------------


class TracedRecorder(PostgresRecorder):
    """Writes down each protocol message of its connections."""

    def __init__(self, dsn: str, trace: Path) -> None:
        self._trace = trace.open("a+")
        super().__init__(dsn, connections=1, patience=5)

    def _connect(self, *timeouts: Timeouts) -> Connection:
        connection = super()._connect(*timeouts)
        connection.pgconn.trace(self._trace.fileno())
        return connection

    def messages(self) -> list[str]:
        """Since the last call; each begins with F (from us) or B (from the server), its length and its name."""
        self._trace.seek(0)
        lines = self._trace.read().splitlines()
        self._trace.truncate(0)
        return [line.partition("\t")[2] for line in lines]


def test_an_append_is_one_round_trip_and_nothing_but_the_insert(store_dsn: str, tmp_path: Path) -> None:
    with contextlib.closing(TracedRecorder(store_dsn, tmp_path / "trace")) as recorder:
        recorder.insert_events([event("first")])
        recorder.messages()
        recorder.insert_events([event("second")])
        messages = recorder.messages()
        sent = [message.split("\t")[2] for message in messages if message.startswith("F")]
        received = [message.split("\t")[2] for message in messages if message.startswith("B")]
    assert sent == ["Bind", "Describe", "Execute", "Sync"]
    assert received.count("ReadyForQuery") == 1
    assert received.count("CommandComplete") == 1


def test_an_append_takes_no_lock_on_the_table_but_that_of_an_insert(store_dsn: str, recorder: PostgresRecorder) -> None:
    """Looked at while it waits for another who has the same version and has not committed."""
    locks = """
        SELECT DISTINCT mode FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE relation = 'stored_events'::regclass AND application_name = 'counterfoil store'
    """
    with open_session(store_dsn) as other, autocommit(store_dsn) as looking:
        write(other, "a")
        appending = threading.Thread(target=recorder.insert_events, args=([event("a")],))
        appending.start()
        assert eventually(lambda: looking.execute(locks).fetchall()) == [("RowExclusiveLock",)]
        other.rollback()
        appending.join()
    assert len(recorder.select_events("a")) == 1


def test_an_append_never_waits_for_another_append(store_dsn: str, recorder: PostgresRecorder) -> None:
    with open_session(store_dsn) as slow:
        write(slow, "open")
        began = time.monotonic()
        recorder.insert_events([event("b")])
        assert time.monotonic() - began < 1
        slow.rollback()


def test_maintenance_of_the_table_and_appends_never_block_each_other(
    store_dsn: str, recorder: PostgresRecorder
) -> None:
    """VACUUM, ANALYZE and CREATE INDEX CONCURRENTLY all take this lock, which is held open here."""
    with open_session(store_dsn) as maintenance:
        maintenance.execute("LOCK TABLE stored_events IN SHARE UPDATE EXCLUSIVE MODE")
        began = time.monotonic()
        recorder.insert_events([event("a")])
        assert time.monotonic() - began < 1
    with open_session(store_dsn) as appending, autocommit(store_dsn) as maintaining:
        write(appending, "open")
        maintaining.execute("SET statement_timeout = '5s'")
        maintaining.execute("VACUUM stored_events")
        maintaining.execute("ANALYZE stored_events")


def test_appends_go_on_while_an_index_is_built_concurrently(store_dsn: str, recorder: PostgresRecorder) -> None:
    progress = "SELECT 1 FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
    with open_session(store_dsn) as old, autocommit(store_dsn) as building, autocommit(store_dsn) as looking:
        write(old, "keeps the build waiting")
        build = threading.Thread(
            target=building.execute, args=("CREATE INDEX CONCURRENTLY later ON stored_events (stored_at)",)
        )
        build.start()
        eventually(lambda: looking.execute(progress).fetchone())
        began = time.monotonic()
        recorder.insert_events([event("a")])
        assert time.monotonic() - began < 1
        old.commit()
        build.join(10)
        assert not build.is_alive()


@pytest.mark.parametrize(
    ("statement", "types", "values"),
    [
        (READ_EVENTS, "bigint, bigint", "0, 500"),
        (LOAD_FORWARDS, "text, bigint, bigint, bigint", "'a', 0, 10, null"),
        (LOAD_BACKWARDS, "text, bigint, bigint, bigint", "'a', 0, 10, null"),
    ],
)
def test_a_plan_made_for_an_empty_table_is_good_for_a_full_one(
    store_dsn: str, statement: str, types: str, values: str
) -> None:
    """A prepared statement keeps its plan while the table grows to millions of rows."""
    numbers = itertools.count(1)
    statement = re.sub("%s", lambda _: f"${next(numbers)}", statement)
    with autocommit(store_dsn) as session:
        session.execute("SET plan_cache_mode = force_generic_plan")
        session.execute(f"PREPARE reading ({types}) AS {statement}".encode())
        plan = str(session.execute(f"EXPLAIN EXECUTE reading ({values})".encode()).fetchall())
    assert "Index Scan" in plan
    assert "Seq Scan" not in plan


# --- Conflicts ----------------------------------------------------------------------------------------


def test_a_clash_of_positions_is_not_taken_for_a_version_conflict(store_dsn: str, recorder: PostgresRecorder) -> None:
    """As after a careless restore: the sequence stands below what is stored. To load again would not help.

    An event that is stored alone gets the next free position. Those of one command are stored together or not at all.
    """
    recorder.insert_events([event("a")])
    _set_back(store_dsn)
    assert recorder.insert_events([event("b")]) == [2]
    _set_back(store_dsn)
    with pytest.raises(psycopg.errors.UniqueViolation):
        recorder.insert_events([event("c", 1), event("c", 2)])
    assert _stored(store_dsn) == [("a", 1), ("b", 2)]


def _set_back(store_dsn: str) -> None:
    with autocommit(store_dsn) as session:
        session.execute("SELECT setval('stored_events_position_seq', 1, false)")


def _stored(store_dsn: str) -> list[tuple[str, int]]:
    with autocommit(store_dsn) as session:
        rows = session.execute("SELECT originator_id, position FROM stored_events ORDER BY position").fetchall()
    return [(originator_id, position) for originator_id, position in rows]


def test_an_error_of_the_data_is_not_tried_again(recorder: PostgresRecorder) -> None:
    began = time.monotonic()
    with pytest.raises(psycopg.DataError):
        recorder.insert_events([event("nul\0")])
    assert time.monotonic() - began < 1
    recorder.insert_events([event("a")])


def test_a_conflict_leaves_the_connection_usable(recorder: PostgresRecorder) -> None:
    recorder.insert_events([event("a")])
    for _ in range(10):
        with pytest.raises(IntegrityError):
            recorder.insert_events([event("a")])
    recorder.insert_events([event("b")])


# --- Reading through the library's port ---------------------------------------------------------------


def test_notifications_end_before_an_unsettled_position(store_dsn: str, recorder: PostgresRecorder) -> None:
    recorder.insert_events([event("first")])
    with open_session(store_dsn) as slow:
        write(slow, "slow")
        recorder.insert_events([event("last")])
        assert [each.originator_id for each in recorder.select_notifications(None, 10)] == ["first"]
        slow.commit()
    assert [each.originator_id for each in recorder.select_notifications(None, 10)] == ["first", "slow", "last"]


def test_notifications_go_on_though_somebody_always_writes(store_dsn: str, recorder: PostgresRecorder) -> None:
    burn(store_dsn)
    with open_session(store_dsn) as one, open_session(store_dsn) as two:
        write(one, "one")
        recorder.insert_events([event("waits")])
        assert recorder.select_notifications(None, 10) == []
        write(two, "two")
        one.commit()
        assert [each.originator_id for each in recorder.select_notifications(None, 10)] == ["one", "waits"]


def test_subscribing_says_where_to_go_instead(recorder: PostgresRecorder) -> None:
    with pytest.raises(NotImplementedError, match="relay"):
        recorder.subscribe()


# --- Append only --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["stored_events", "store_identity"])
@pytest.mark.parametrize("replica", [False, True])
@pytest.mark.parametrize("change", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {}", "TRUNCATE {} CASCADE"])
def test_what_is_stored_is_never_changed_or_deleted(store_dsn: str, table: str, replica: bool, change: str) -> None:
    column = {"stored_events": "topic", "store_identity": "created_at"}[table]
    with autocommit(store_dsn) as session:
        write(session, "a")
        if replica:
            session.execute("SET session_replication_role = replica")
        before = session.execute(f"SELECT * FROM {table}".encode()).fetchall()
        with pytest.raises(psycopg.errors.RestrictViolation, match="never changed or deleted"):
            session.execute(change.format(table, column, column).encode())
        assert session.execute(f"SELECT * FROM {table}".encode()).fetchall() == before


def test_a_position_is_never_chosen_by_the_writer(store_dsn: str) -> None:
    with autocommit(store_dsn) as session, pytest.raises(psycopg.errors.GeneratedAlways):
        session.execute(
            "INSERT INTO stored_events (position, originator_id, originator_version, topic, state)"
            " VALUES (1, 'a', 1, 't', '{}')"
        )


def test_no_session_draws_positions_beforehand(store_dsn: str) -> None:
    with autocommit(store_dsn) as session:
        cached = session.execute(
            "SELECT cache_size, data_type::text FROM pg_sequences WHERE sequencename = 'stored_events_position_seq'"
        )
        assert cached.fetchall() == [(1, "bigint")]


def test_a_store_has_one_identity(store_dsn: str) -> None:
    with autocommit(store_dsn) as session:
        assert session.execute("SELECT count(*) FROM store_identity").fetchone() == (1,)
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.execute("INSERT INTO store_identity DEFAULT VALUES")
        with pytest.raises(psycopg.errors.CheckViolation):
            session.execute("INSERT INTO store_identity (only_one) VALUES (false)")


# --- Threads and processes ----------------------------------------------------------------------------


def test_more_threads_than_connections_all_get_their_turn(store_dsn: str) -> None:
    with contextlib.closing(PostgresRecorder(store_dsn, connections=2, patience=5)) as recorder:

        def work(name: int) -> None:
            for version in range(1, 11):
                recorder.insert_events([event(f"a{name}", version)])

        threads = [threading.Thread(target=work, args=(name,)) for name in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.max_notification_id() == 120
        assert sessions(store_dsn) == 3, "two that append, and the reader of max_notification_id"


def test_a_forked_child_has_connections_of_its_own(store_dsn: str, recorder: PostgresRecorder) -> None:
    recorder.insert_events([event("parent", 1)])
    recorder.max_notification_id()
    answers: Any = multiprocessing.get_context("fork").Queue()

    def child() -> None:
        recorder.insert_events([event("child", version) for version in (1, 2)])
        answers.put((len(recorder.select_events("parent")), recorder.max_notification_id(), sessions(store_dsn)))
        recorder.close()

    assert sessions(store_dsn) == 2
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert answers.get(timeout=10) == (1, 3, 4)
    process.join(10)
    assert process.exitcode == 0
    recorder.insert_events([event("parent", 2)])
    assert recorder.max_notification_id() == 4


def sessions(dsn: str) -> int:
    """Open ones of recorders."""
    with autocommit(dsn) as session:
        row = session.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'counterfoil store' AND datname = current_database()"
        ).fetchone()
    return row[0] if row else 0
