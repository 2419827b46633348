"""Who waits for a projection is woken when it is there, told in time when it is not, and never left waiting."""

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from time import monotonic

import pytest

from infrastructure.hints import NOTIFY_PROJECTED
from projections import positions, waiting
from projections.waiting import PositionWatch
from tests.support.feeding import feeding
from tests.support.parcel_counts import OUTBOXES, ParcelCounts, counts, with_counts
from tests.support.parcels import Parcels, parcels_in
from tests.support.pgbouncer import PgBouncer
from tests.support.stored_events import autocommit, proxied
from tests.support.wait import eventually

COUNTS = ParcelCounts()
NAME = COUNTS.consumer_name
LONG = 60.0
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counterfoil waiting' AND datname = %s"


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_counts(store_dsn)


@pytest.fixture
def parcels(dsn: str) -> Iterator[Parcels]:
    with parcels_in(dsn) as parcels:
        yield parcels


@contextmanager
def watching(dsn: str) -> Iterator[PositionWatch]:
    with closing(PositionWatch(dsn, NAME)) as watch:
        yield watch


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hint can wake anybody."""
    monkeypatch.setattr(waiting, "POLL", 1_000.0)


def apply_up_to(dsn: str, position: int) -> None:
    """As a runner does, without a hint to anyone."""
    with autocommit(dsn) as connection:
        positions.begin(connection, NAME, 1)
        (place,) = positions.read(connection, NAME)
        positions.move(connection, place, position, b"")


def hint(dsn: str) -> None:
    with autocommit(dsn) as connection:
        connection.execute(NOTIFY_PROJECTED)


def test_what_is_there_already_is_not_waited_for(dsn: str, no_polls: None) -> None:
    apply_up_to(dsn, 7)
    with watching(dsn) as watch:
        assert watch.wait_for(7, LONG)
        assert watch.wait_for(3, LONG)


def test_a_hint_wakes_whoever_waits_for_what_has_come_and_nobody_else(dsn: str, no_polls: None) -> None:
    with watching(dsn) as watch, ThreadPoolExecutor(20) as threads:
        first = [threads.submit(watch.wait_for, 5, LONG) for _ in range(10)]
        later = [threads.submit(watch.wait_for, 6, LONG) for _ in range(5)]
        eventually(lambda: len(watch._awaited) == 2, within=30)
        apply_up_to(dsn, 5)
        hint(dsn)
        assert all(each.result(LONG) for each in first)
        assert not any(each.done() for each in later)
        apply_up_to(dsn, 6)
        hint(dsn)
        assert all(each.result(LONG) for each in later)


def test_the_runner_sends_the_hint_once_the_effect_can_be_read(dsn: str, parcels: Parcels, no_polls: None) -> None:
    with feeding(dsn, COUNTS, OUTBOXES), watching(dsn) as watch:
        for moves in range(1, 6):
            assert watch.wait_for(parcels.move("a"), LONG)
            assert counts(parcels.connection) == {"a": moves}


def test_a_lost_hint_costs_a_poll_and_no_more(dsn: str) -> None:
    with watching(dsn) as watch, ThreadPoolExecutor() as threads:
        waits = threads.submit(watch.wait_for, 5, LONG)
        eventually(lambda: watch._awaited, within=30)
        apply_up_to(dsn, 5)
        assert waits.result(LONG)


def test_who_waits_in_vain_is_told_so_in_time(dsn: str) -> None:
    with watching(dsn) as watch:
        began = monotonic()
        assert not watch.wait_for(5, 0.3)
        assert monotonic() - began >= 0.3
        assert not watch._awaited, "nobody is looked out for any more"


def test_a_position_is_awaited_of_all_shards(dsn: str) -> None:
    with autocommit(dsn) as connection, connection.transaction():
        positions.begin(connection, NAME, 1)
        positions.lock(connection, NAME)
        positions.replace(connection, NAME, 2, 1, 3, b"")
        positions.move(connection, positions.read(connection, NAME)[0], 8, b"")
    with watching(dsn) as watch:
        assert watch.wait_for(3, LONG)
        assert not watch.wait_for(8, 0.3)


def test_a_server_that_is_away_is_waited_for(dsn: str) -> None:
    with proxied(dsn) as (proxy, way), watching(way) as watch, ThreadPoolExecutor() as threads:
        apply_up_to(dsn, 1)
        assert watch.wait_for(1, LONG)
        proxy.cut()
        assert not watch.wait_for(2, 0.2)
        waits = threads.submit(watch.wait_for, 2, LONG)
        apply_up_to(dsn, 2)
        proxy.resume()
        assert waits.result(LONG)


def test_behind_a_pooler_it_looks_now_and_then_and_leaves_nothing_in_the_sessions_of_others(
    dsn: str, pgbouncer: PgBouncer
) -> None:
    way = pgbouncer.through(dsn)
    with watching(way) as watch, ThreadPoolExecutor() as threads:
        waits = threads.submit(watch.wait_for, 5, LONG)
        eventually(lambda: watch._awaited, within=30)
        apply_up_to(dsn, 5)
        assert waits.result(LONG)
        with autocommit(way) as pooled:
            assert pooled.execute("SELECT pg_listening_channels()").fetchone() is None


def test_closing_tells_whoever_waits_and_leaves_no_session(dsn: str, parcels: Parcels) -> None:
    watch = PositionWatch(dsn, NAME)
    database = parcels.connection.info.dbname
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(watch.wait_for, 5, LONG)
        eventually(lambda: parcels.connection.execute(LISTENERS, (database,)).fetchone() == (1,), within=30)
        watch.close()
        assert not waits.result(LONG)
    eventually(lambda: parcels.connection.execute(LISTENERS, (database,)).fetchone() == (0,), within=30)
    assert not watch.wait_for(5, LONG)


def test_a_forked_child_waits_on_a_session_of_its_own(dsn: str) -> None:
    apply_up_to(dsn, 1)
    with watching(dsn) as watch:
        assert watch.wait_for(1, LONG)
        child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(not watch.wait_for(1, LONG)))
        child.start()
        child.join(LONG)
        assert child.exitcode == 0
        apply_up_to(dsn, 2)
        assert watch.wait_for(2, LONG)
