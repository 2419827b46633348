"""The table of snapshots: lost, locked, meddled with or not there at all, it changes no answer."""

import threading
import time
from collections.abc import Iterator

import pytest

from domain.snapshots import Outcome
from infrastructure.event_store import store_env
from infrastructure.postgres import Connection
from tests.support.releases import releases
from tests.support.shop import BASKET, Shop
from tests.support.stored_events import autocommit, open_session


@pytest.fixture
def shop(store_dsn: str) -> Iterator[Shop]:
    with releases() as release, Shop(store_env(store_dsn)) as shop:
        shop.basket = release.install(BASKET)
        yield shop


@pytest.fixture
def session(store_dsn: str) -> Iterator[Connection]:
    with autocommit(store_dsn) as session:
        yield session


def test_there_is_one_row_for_each_aggregate_however_many_snapshots_were_taken(shop: Shop, session: Connection) -> None:
    for basket_id in ("b-1", "b-2"):
        shop.open_and_fill(31, basket_id)
    rows = session.execute("SELECT originator_id, topic, originator_version FROM snapshots ORDER BY 1").fetchall()
    assert rows == [("b-1", "basket", 30), ("b-2", "basket", 30)]


def test_a_store_that_has_no_such_table_yet_works_without_snapshots(shop: Shop, session: Connection) -> None:
    session.execute("DROP TABLE snapshots")
    shop.open_and_fill(events=12)
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.UNAVAILABLE) > 0


def test_the_table_may_be_emptied_at_any_time(shop: Shop, session: Connection) -> None:
    shop.open_and_fill(events=12)
    session.execute("DELETE FROM snapshots")
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.TAKEN) == 3


@pytest.mark.parametrize(
    "meddling",
    [
        "state = replace(encode(state, 'escape'), '\"pieces\":45', '\"pieces\":46')::bytea",
        "state = ''",
        "originator_version = originator_version + 1",
        "originator_version = -1",
        "snapshot_version = 7",
        "fingerprint = ''",
        "seal = seal || '\\x00'",
        "topic = 'nothing'",
    ],
)
def test_a_row_that_was_meddled_with_is_not_believed(shop: Shop, session: Connection, meddling: str) -> None:
    shop.open_and_fill(events=12)
    used = shop.counted(Outcome.USED)
    assert session.execute(f"UPDATE snapshots SET {meddling}".encode()).rowcount == 1
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.USED) == used


def test_saving_never_waits_for_a_snapshot(store_dsn: str, shop: Shop) -> None:
    shop.open_and_fill(events=14)
    basket = shop.load()
    basket.fill()
    with open_session(store_dsn) as other:
        other.execute("LOCK TABLE snapshots")
        began = time.monotonic()
        shop.save(basket)
        assert time.monotonic() - began < 1
    assert shop.load().version == 15


def test_while_the_snapshots_stay_locked_one_load_waits_and_the_others_go_on_without(
    store_dsn: str, shop: Shop
) -> None:
    shop.open_and_fill(events=12)
    with open_session(store_dsn) as other:
        other.execute("LOCK TABLE snapshots")
        assert shop.load() == shop.replayed()
        began = time.monotonic()
        for _ in range(10):
            assert shop.load() == shop.replayed()
        assert time.monotonic() - began < 2
    assert shop.counted(Outcome.UNAVAILABLE) == 1


def test_a_load_goes_on_when_its_connections_were_cut(shop: Shop, session: Connection) -> None:
    shop.open_and_fill(events=12)
    session.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'counterfoil store' AND datname = current_database()"
    )
    assert shop.load() == shop.replayed()


def test_many_who_write_one_aggregate_never_load_another_state_than_its_events_make(
    shop: Shop, session: Connection
) -> None:
    """While snapshots are taken, replaced and removed by everybody at once."""
    shop.open_and_fill(events=1)
    wrong: list[object] = []

    def fill() -> None:
        for _ in range(15):
            shop.until_saved(shop.fill)
            loaded = shop.load()
            events = shop.events.get("b-1", lte=loaded.version)
            if loaded != shop.project(events):
                wrong.append(loaded)

    shop.attempts = 1000  # type: ignore[misc]
    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        session.execute("DELETE FROM snapshots")
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert not wrong
    assert shop.load().version == 61
    assert shop.counted(Outcome.USED) > 20
