"""Ranges of event ids: wherever an id is kept, it is taken once per consumer, and no missing range stops that."""

import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import UniqueViolation

from infrastructure.migrate import Migrations, SchemaBusy, migrate
from projections import inbox
from projections.inbox import claim
from projections.inbox_ranges import make_ranges_ahead, now_ms, ranges
from projections.range_keeper import RangeKeeper
from tests.support.inbox import DAY_MS, id_at, known, migrated, table_of, waits_for_a_lock
from tests.support.inventory import connected, count
from tests.support.together import together
from tests.support.wait import eventually

SAMPLE = "evt_01JQ8X8F"
"""From the owner of the contract."""

OTHER_SHAPES = [
    *(SAMPLE, "evt_01KZ0000000000000000000000", "evt_1", "evt_", "evt_0", "evt_01", "evt_01:", "evt_01a", "evt_04"),
    *("!", "~", "~~", "A", "Order-17", "a", "evt", "evt`", "evtz", "event_1", "evt_g", "evt_zz", "EVT_01a2c"),
    *("evt_01a2", "evt_01a2c", "evt_01a2cX", "evt_01a2:", "evt_019f", "evt_0199z", "evt_01a2cffffffff", "x" * 128),
    *(f"evt_{'F' * 32}", f"evt_{'f' * 32}", f"evt_{'0' * 32}", f"evt_{'9' * 32}", f"evt_{'0' * 33}"),
]


def of_all_times(now: int) -> list[str]:
    """Ids of ours around the ends of ranges, and where there can be no range."""
    start = now >> 28 << 28
    ends = [start + step * 2**28 + ms for step in (-40, -4, -1, 0, 1, 2, 10, 11, 12) for ms in (-1, 0, 1)]
    return [id_at(ms) for ms in (*ends, 0, 1, 2**40 - 1, 2**40, 2**42 - 1, 2**42, 2**48 - 1)]


@pytest.fixture
def house(empty_dsn: str) -> Iterator[Connection]:
    with connected(migrated(empty_dsn)) as connection:
        yield connection


@pytest.fixture
def before(tmp_path: Path) -> list[Migrations]:
    """The inbox as it was without ranges."""
    for name in ("0001_inbox.sql", "0002_quarantine_in_order.sql"):
        shutil.copy(inbox.MIGRATIONS.folder / name, tmp_path)
    return [Migrations("inbox", tmp_path)]


def refuses(connection: Connection, consumer_name: str, event_id: str) -> bool:
    """Whether the database itself takes no second row, without any help of ours."""
    try:
        connection.execute("INSERT INTO processed_events VALUES (%s, %s)", (consumer_name, event_id))
    except UniqueViolation:
        return True
    return False


def test_each_id_is_taken_once_per_consumer_whatever_its_shape_and_time(house: Connection) -> None:
    ids = [*OTHER_SHAPES, *of_all_times(now_ms(house))]
    for name in ("inventory", "billing"):
        assert claim(house, name, ids) == set(ids)
        assert claim(house, name, ids) == set()
        assert [each for each in ids if not refuses(house, name, each)] == []


def test_what_was_known_before_there_were_ranges_is_known_after_it(empty_dsn: str, before: list[Migrations]) -> None:
    migrate(empty_dsn, before)
    with connected(empty_dsn) as house:
        ids = [*OTHER_SHAPES, *of_all_times(now_ms(house))]
        for name in ("inventory", "billing"):
            assert len([claim_without_ranges(house, name, each) for each in ids]) == len(ids)
        migrated(empty_dsn)
        for name in ("inventory", "billing"):
            assert known(house, name) == set(ids)
            assert claim(house, name, ids) == set()
            assert [each for each in ids if not refuses(house, name, each)] == []
        new = [id_at(now_ms(house)), "evt_02JQ8X8F"]
        assert claim(house, "inventory", new) == set(new)
        assert make_ranges_ahead(house) == []


def claim_without_ranges(connection: Connection, consumer_name: str, event_id: str) -> None:
    connection.execute(
        "INSERT INTO processed_events (consumer_name, event_id) VALUES (%s, %s)", (consumer_name, event_id)
    )


def test_ids_of_ours_have_ranges_and_all_others_have_places_of_their_own(house: Connection) -> None:
    now = now_ms(house)
    ours = [id_at(now + days * DAY_MS) for days in (0, 5, 25)]
    claim(house, "inventory", [*ours, SAMPLE, "Order-17", "evt_zz"])
    assert [table_of(house, each) for each in ours] == [f"processed_events_{each[4:9]}" for each in ours]
    places = [table_of(house, each) for each in (SAMPLE, "Order-17", "evt_zz")]
    assert places == ["processed_events_other", "processed_events_lower", "processed_events_upper"]
    assert count(house, "processed_events_rest") == 0


def test_the_migration_waits_for_a_batch_under_way_and_leaves_nothing_half_done(
    empty_dsn: str, before: list[Migrations]
) -> None:
    migrate(empty_dsn, before)
    with connected(empty_dsn) as consumer, connected(empty_dsn) as house:
        with consumer.transaction():
            claim_without_ranges(consumer, "inventory", "evt_1")
            with pytest.raises(SchemaBusy):
                migrate(empty_dsn, [inbox.MIGRATIONS], patience=0.1)
        assert house.execute(
            "SELECT to_regclass('processed_events_before'), to_regclass('inbox_horizons')"
        ).fetchone() == (
            None,
            None,
        )
        migrated(empty_dsn)
        assert known(house, "inventory") == {"evt_1"}


def test_who_could_use_the_inbox_before_there_were_ranges_still_can(
    empty_dsn: str, before: list[Migrations], role: str
) -> None:
    migrate(empty_dsn, before)
    with connected(empty_dsn) as owner:
        owner.execute(sql.SQL("GRANT SELECT, INSERT ON processed_events TO {}").format(sql.Identifier(role)))
        migrated(empty_dsn)
        owner.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        assert claim(owner, "inventory", [SAMPLE, id_at(now_ms(owner))]) != set()


@pytest.fixture
def role(empty_dsn: str) -> Iterator[str]:
    """Somebody who owns nothing."""
    name = "somebody_" + make_conninfo(empty_dsn).partition("empty_")[2][:10]
    with psycopg.connect(empty_dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(name)))
    yield name
    with psycopg.connect(empty_dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def drop_ranges(house: Connection) -> None:
    """As if nobody had made any for a long time."""
    for each in ranges(house):
        house.execute(f"DROP TABLE {each.table}")


def test_a_missing_range_stops_nothing_and_what_came_meanwhile_is_moved_into_it(house: Connection) -> None:
    drop_ranges(house)
    ids = [id_at(now_ms(house) + n * DAY_MS) for n in range(-2, 30)]
    assert claim(house, "inventory", ids) == set(ids)
    assert count(house, "processed_events_rest") == 32
    assert len(make_ranges_ahead(house)) == 11
    assert known(house, "inventory") == set(ids)
    assert count(house, "processed_events_rest") <= 2
    assert claim(house, "inventory", ids) == set()
    assert [each for each in ids if not refuses(house, "inventory", each)] == []
    assert make_ranges_ahead(house) == []


def test_an_event_that_is_claimed_while_its_range_is_made_is_claimed_once(empty_dsn: str, house: Connection) -> None:
    for _ in range(5):
        drop_ranges(house)
        ids = [id_at(now_ms(house) + n) for n in range(200)]
        claim(house, "inventory", ids[:100])
        with connected(empty_dsn) as one, connected(empty_dsn) as two, connected(empty_dsn) as keeper:
            results = together(
                [
                    partial(claim, one, "inventory", ids),
                    partial(claim, two, "inventory", ids),
                    lambda: set(make_ranges_ahead(keeper)) & set(),
                ]
            )
        assert sorted([*results[0], *results[1]]) == sorted(ids[100:])
        assert [each for each in ids if not refuses(house, "inventory", each)] == []


def test_a_range_is_made_only_when_no_claim_of_it_is_under_way(empty_dsn: str, house: Connection) -> None:
    drop_ranges(house)
    event_id = id_at(now_ms(house))
    with connected(empty_dsn) as consumer, connected(empty_dsn) as keeper, ThreadPoolExecutor() as threads:
        with consumer.transaction():
            claim(consumer, "inventory", [event_id])
            making = threads.submit(partial(make_ranges_ahead, keeper))
            eventually(partial(waits_for_a_lock, house, keeper.info.backend_pid), within=30)
        assert len(making.result(30)) == 11
    assert table_of(house, event_id) == f"processed_events_{event_id[4:9]}"
    assert claim(house, "inventory", [event_id]) == set()


def test_too_much_to_move_stays_where_it_is(house: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_ranges(house)
    ids = [id_at(now_ms(house)) for _ in range(5)]
    claim(house, "inventory", ids)
    monkeypatch.setattr("projections.inbox_ranges.MOST_TO_MOVE", 4)
    assert len(make_ranges_ahead(house)) == 10
    assert table_of(house, ids[0]) == "processed_events_rest"
    assert claim(house, "inventory", ids) == set()


def test_the_keeper_makes_ranges_and_passes_by_what_it_may_not_do(
    empty_dsn: str, house: Connection, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    drop_ranges(house)
    as_somebody = make_conninfo(empty_dsn, user=role, password="x")
    RangeKeeper(as_somebody, "inventory").step()
    [told] = [vars(each) for each in caplog.records if each.levelno == logging.WARNING]
    assert (told["message"], told["error"]) == ("ranges of the inbox could not be made ahead", "42501")
    assert ranges(house) == []
    RangeKeeper(empty_dsn, "inventory").step()
    assert len(ranges(house)) == 11
