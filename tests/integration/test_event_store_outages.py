"""Appending while replies get lost, sessions turn read-only and servers go away: stored or not, and never a guess."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError
from psycopg.conninfo import make_conninfo

from counterfoil.embedded import EmbeddedPostgres
from domain.orders.application import Orders
from infrastructure.append import CommitOutcomeUnknown
from infrastructure.event_store import PostgresRecorder, store_env
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.pool import Pool
from infrastructure.postgres import Connection, StoreUnavailable, Timeouts, connect
from tests.integration.test_event_store import order
from tests.support.read_only import becomes_read_only
from tests.support.stored_events import autocommit, event, open_session, proxied
from tests.support.wait import eventually

T = TypeVar("T")

GATE = 4711
SLOW_COMMIT = f"""
    CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON stored_events
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate();
"""
WAITING_AT_THE_GATE = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
WAITING_FOR_A_ROW = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
ROWS = "SELECT originator_id, originator_version, convert_from(state, 'UTF8') FROM stored_events ORDER BY position"


@contextlib.contextmanager
def recorder_at(dsn: str, patience: float = 10) -> Iterator[PostgresRecorder]:
    """With one connection open and its statement prepared, as in a process that runs."""
    with contextlib.closing(PostgresRecorder(dsn, connections=4, patience=patience)) as recorder:
        recorder.insert_events([event("warm-up")])
        yield recorder


@contextlib.contextmanager
def in_background(work: Callable[[], T]) -> Iterator[Future[T]]:
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit(work)


def rows(dsn: str) -> list[tuple[str, int, str]]:
    with autocommit(dsn) as session:
        return [row for row in session.execute(ROWS) if row[0] != "warm-up"]


# --- A lost reply -------------------------------------------------------------------------------------


def test_an_order_whose_reply_was_lost_is_placed_once_and_answered(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), Orders(env=store_env(through)) as orders:
        orders.place(order("warm-up"))
        lost = proxy.lose_reply_to(b'"customer_id"')
        assert orders.place(order("o-1")).changed
        assert lost.is_set()
        assert not orders.place(order("o-1")).changed
    assert [row[:2] for row in rows(store_dsn)] == [("o-1", 1)]


def test_events_whose_reply_was_lost_are_found_at_their_positions(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), recorder_at(through) as recorder:
        lost = proxy.lose_reply_to(b"second of two")
        positions = recorder.insert_events([event("a"), event("b", state=b'{"which":"second of two"}')])
        assert lost.is_set()
        read = recorder.select_notifications(None, 10)
        assert [(each.originator_id, each.id) for each in read[1:]] == list(zip("ab", positions, strict=True))


def test_what_was_lost_on_the_way_to_the_server_is_stored_by_the_second_attempt(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), recorder_at(through) as recorder:
        proxy.pause_requests()
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            proxy.cut()
            proxy.resume()
            assert append.result(10)
    assert rows(store_dsn) == [("a", 1, "{}")]


def test_an_append_that_meets_its_own_row_on_a_second_attempt_has_succeeded(store_dsn: str) -> None:
    """The first attempt is still committing when the second looks and finds nothing."""
    with proxied(store_dsn) as (proxy, through), recorder_at(through) as recorder, autocommit(store_dsn) as gate:
        gate.execute(SLOW_COMMIT)
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            eventually(lambda: gate.execute(WAITING_AT_THE_GATE, (GATE,)).fetchone())
            proxy.cut()
            proxy.resume()
            eventually(
                lambda: gate.execute(
                    "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
                ).fetchone()
            )
            gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
            assert append.result(10)
    assert rows(store_dsn) == [("a", 1, "{}")]


def test_an_append_whose_session_is_ended_by_the_administrator_is_made_again(store_dsn: str) -> None:
    with recorder_at(store_dsn) as recorder, autocommit(store_dsn) as gate:
        gate.execute(SLOW_COMMIT)
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            (pid,) = eventually(lambda: gate.execute(WAITING_AT_THE_GATE, (GATE,)).fetchone())
            gate.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
            assert append.result(10)
    assert rows(store_dsn) == [("a", 1, "{}")]


def test_the_row_of_another_writer_is_a_conflict_on_the_second_attempt_too(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), recorder_at(through) as recorder, autocommit(store_dsn) as other:
        proxy.pause_requests()
        with in_background(lambda: recorder.insert_events([event("a", state=b'{"by":"us"}')])) as append:
            other.execute(
                "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
                " VALUES ('a', 1, 'thing.done', '{\"by\":\"them\"}')"
            )
            proxy.cut()
            proxy.resume()
            with pytest.raises(IntegrityError):
                append.result(10)
    assert rows(store_dsn) == [("a", 1, '{"by":"them"}')]


def test_an_unknown_outcome_is_called_unknown_and_the_same_command_again_settles_it(store_dsn: str) -> None:
    with (
        proxied(store_dsn) as (proxy, through),
        Orders(env=store_env(make_conninfo(through, options="-c lock_timeout=30s"), patience=0.5)) as orders,
        autocommit(store_dsn) as gate,
    ):
        gate.execute(SLOW_COMMIT)
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        with in_background(lambda: orders.place(order("o-1"))) as placing:
            eventually(lambda: gate.execute(WAITING_AT_THE_GATE, (GATE,)).fetchone())
            proxy.cut()
            with pytest.raises(CommitOutcomeUnknown):
                placing.result(10)
        assert rows(store_dsn) == []
        gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
        eventually(lambda: rows(store_dsn))
        proxy.resume()
        assert not orders.place(order("o-1")).changed
    assert [row[:2] for row in rows(store_dsn)] == [("o-1", 1)]


# --- An unreachable or busy database ------------------------------------------------------------------


def store_on(server: EmbeddedPostgres) -> str:
    dsn = server.create_database("store")
    migrate(dsn, STORE_MIGRATIONS)
    return dsn


def test_an_append_rides_out_a_crash_of_the_server(own_postgres: EmbeddedPostgres) -> None:
    with recorder_at(store_on(own_postgres), patience=20) as recorder:
        own_postgres.kill()
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            own_postgres.start()
            assert append.result(20)
        assert len(recorder.select_events("a")) == 1


def test_connections_that_died_while_idle_are_replaced_unnoticed(store_dsn: str) -> None:
    """All of them at once, as by a restart, and without any patience."""
    with recorder_at(store_dsn, patience=0) as recorder:
        start = threading.Barrier(4)

        def append(name: str) -> None:
            start.wait()
            recorder.insert_events([event(name)])

        with ThreadPoolExecutor(4) as executor:
            list(executor.map(append, ["a", "b", "c", "d"]))
        kill = (
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'counterfoil store'"
        )
        with autocommit(store_dsn) as admin:
            killed = admin.execute(kill + " AND datname = current_database()").fetchall()
        assert len(killed) > 1
        for number in range(5):
            recorder.insert_events([event(f"after {number}")])
        assert len(recorder.select_events("a")) == 1


def test_a_database_that_stays_away_is_reported_in_bounded_time(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), recorder_at(through, patience=0.5) as recorder:
        proxy.cut()
        for attempt in (lambda: recorder.select_events("a"), recorder.max_notification_id):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                attempt()
            assert time.monotonic() - began < 5
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            recorder.insert_events([event("a")])
        assert time.monotonic() - began < 5
        proxy.resume()
        recorder.insert_events([event("a")])
    assert rows(store_dsn) == [("a", 1, "{}")]


def test_closing_ends_the_attempts_at_once(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), recorder_at(through, patience=60) as recorder:
        proxy.cut()
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            began = time.monotonic()
            recorder.close()
            with pytest.raises(StoreUnavailable):
                append.result(10)
            assert time.monotonic() - began < 5


def test_an_append_behind_a_table_lock_fails_in_bounded_time_and_may_be_repeated(store_dsn: str) -> None:
    hasty = make_conninfo(store_dsn, options="-c lock_timeout=300")
    with recorder_at(hasty, patience=0.5) as recorder, open_session(store_dsn) as hanging:
        hanging.execute("LOCK TABLE stored_events IN EXCLUSIVE MODE")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as refused:
            recorder.insert_events([event("a")])
        assert refused.value.cause == "55P03"
        assert time.monotonic() - began < 3
        hanging.rollback()
        recorder.insert_events([event("a")])
    assert rows(store_dsn) == [("a", 1, "{}")]


def test_sessions_that_turned_read_only_are_replaced(own_postgres: EmbeddedPostgres) -> None:
    """As after a failover that left old sessions open."""
    with recorder_at(store_on(own_postgres), patience=20) as recorder:
        becomes_read_only(own_postgres.dsn(), True)
        with in_background(lambda: recorder.insert_events([event("a")])) as append:
            with pytest.raises(TimeoutError):
                append.result(1)
            becomes_read_only(own_postgres.dsn(), False)
            assert append.result(20)


class RecorderWithOldSessions(PostgresRecorder):
    """The sessions of a primary that has become a standby: open, healthy, and read-only for ever."""

    old = True

    def _connect(self, *timeouts: Timeouts) -> Connection:
        connection = super()._connect(*timeouts)
        if self.old:
            connection.execute("SET default_transaction_read_only = on")
        return connection


def is_read_only(pool: Pool) -> bool:
    with pool.connection() as connection:
        return connection.execute("SHOW transaction_read_only").fetchone() == ("on",)


def test_a_session_that_stays_read_only_is_dropped(store_dsn: str) -> None:
    with contextlib.closing(RecorderWithOldSessions(store_dsn, connections=2, patience=0)) as recorder:
        with pytest.raises(StoreUnavailable):
            recorder.insert_events([event("a")])
        recorder.old = False
        assert recorder.insert_events([event("a")])
        assert not any(is_read_only(pool) for pool in (recorder._pool, recorder._appender._pool))


# --- One connection -----------------------------------------------------------------------------------


def test_a_server_that_falls_silent_is_given_up(store_dsn: str) -> None:
    """TCP keepalives are answered by the proxy: only the limit on the reply ends the wait."""
    with proxied(store_dsn) as (proxy, through):
        connection = connect(through, application_name="test", timeouts=Timeouts(statement=0.5, margin=0.5))
        proxy.blackhole()
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        assert 0.5 < time.monotonic() - began < 5
        assert connection.closed


def test_a_server_that_accepts_and_says_nothing_is_given_up(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through):
        proxy.blackhole()
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            connect(through, application_name="test", timeouts=Timeouts(connect=2))
        assert time.monotonic() - began < 8


def test_the_limits_are_set_in_the_server_and_the_connection_string_wins(store_dsn: str) -> None:
    def shown(connection: psycopg.Connection, *names: str) -> list[str]:
        return [connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0] for name in names]  # type: ignore[index]

    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "application_name")
    with connect(store_dsn, application_name="a b") as connection:
        assert shown(connection, *names) == ["5s", "30s", "30s", "a b"]
    own = make_conninfo(store_dsn, options="-c statement_timeout=1s", connect_timeout=9)
    with connect(own, application_name="a b") as connection:
        assert shown(connection, *names) == ["5s", "1s", "30s", "a b"]
        assert connection.info.get_parameters()["connect_timeout"] == "9"
