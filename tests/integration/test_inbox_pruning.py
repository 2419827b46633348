"""What was applied is forgotten by evidence only, and what may have been forgotten is never applied again."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from psycopg import Connection
from psycopg.errors import DeadlockDetected, DependentObjectsStillExist

from domain.contracts import Contract
from infrastructure.migrate import Migrations, migrate
from infrastructure.postgres import Timeouts, connect
from projections import inbox
from projections.decoding import Category, Faulty
from projections.entries import ParkedKey
from projections.inbox import claim, claim_or_tell
from projections.pruning import LOCK_SECONDS, InboxBusy, examine, prune
from projections.quarantine import Parked, park
from projections.redelivery import Limit
from projections.redriving import Redriver
from projections.verdicts import Verdict
from tests.support.databases import PostgresServer
from tests.support.inbox import (
    days_ago,
    horizons,
    id_at,
    known,
    make_old_range,
    migrated,
    remember,
    remember_from,
    table_of,
    waits_for_a_lock,
)
from tests.support.inventory import apply, connected, count
from tests.support.messages import placed, record
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

GO_ON = Event()
KEPT_BY_ONE_PARKED = ("1 events of it, or whose id cannot be read, wait in quarantine",)


@pytest.fixture(scope="module")
def template(postgres: PostgresServer) -> Iterator[str]:
    """An inbox with ranges for the last 60 days."""
    with postgres.database("ranges_template") as name:
        with connected(migrated(postgres.dsn(name))) as connection:
            connection.execute(CREATE)
            for days in range(0, 60, 3):
                make_old_range(connection, days_ago(connection, days))
        yield name


@pytest.fixture
def dsn(postgres: PostgresServer, template: str) -> Iterator[str]:
    with postgres.database("ranges", template) as name:
        yield postgres.dsn(name)


@pytest.fixture
def house(dsn: str) -> Iterator[Connection]:
    with connected(dsn) as connection:
        yield connection


@pytest.fixture
def pruner(dsn: str) -> Iterator[Connection]:
    """A connection as the command has it."""
    with connect(dsn, application_name="pruner", timeouts=Timeouts(lock=LOCK_SECONDS)) as connection:
        yield connection


def up_to(connection: Connection, days: float, why: str = "a topic still has it") -> list[Limit]:
    """What is older than so many days cannot come again."""
    return [Limit(days_ago(connection, days), why)]


def dropped(verdicts: list[Verdict]) -> list[int]:
    return [each.range.number for each in verdicts if not each.kept_by]


def number_of(event_id: str) -> int:
    return int(event_id[4:9], 16)


def test_only_what_nothing_could_bring_again_is_forgotten(house: Connection, pruner: Connection) -> None:
    old, young = remember_from(house, "tally", 50), remember_from(house, "tally", 20)
    verdicts = prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set(young)
    assert number_of(old[0]) in dropped(verdicts)
    assert verdicts[-1].kept_by == ("a topic still has it",)
    assert [each for each in verdicts[:-1] if each.kept_by] == []
    assert horizons(house) == {"tally": f"evt_{number_of(old[0]) + 1:05x}"}
    assert prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)[0].kept_by == ("a topic still has it",)


def test_the_margin_keeps_what_is_only_just_too_old(house: Connection, pruner: Connection) -> None:
    [event_id] = remember_from(house, "tally", 50, many=1)
    ends = (number_of(event_id) + 1) << 28
    just_short, enough = [Limit(ends + 86_400_000 - 1, "just short")], [Limit(ends + 86_400_000, "enough")]
    prune(pruner, "tally", {"tally": just_short}, GO_ON)
    assert known(house, "tally") == {event_id}
    prune(pruner, "tally", {"tally": enough}, GO_ON)
    assert known(house, "tally") == set()


def test_an_event_from_below_the_horizon_is_quarantined_and_never_applied(
    house: Connection, pruner: Connection
) -> None:
    known_once, *_ = remember_from(house, "tally", 50)
    never_seen = id_at(days_ago(house, 50))
    prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    events = [placed(f"ord_{n}", event_id=each) for n, each in enumerate((known_once, never_seen))]
    events += [placed("ord_new", event_id=id_at(days_ago(house, 1))), placed("ord_sample", event_id="evt_01JQ8X8F")]
    outcome = apply(house, *events, projection=Tally())
    assert tally(house) == [event.event_id for event in events[2:]]
    assert [(each.fault.event_id, each.fault.category) for each in outcome.parked] == [
        (known_once, Category.TOO_OLD),
        (never_seen, Category.TOO_OLD),
    ]
    assert apply(house, *events, projection=Tally()).applied == 0
    assert count(house, "quarantined_events") == 2


def test_ids_of_other_shapes_are_never_forgotten_and_never_too_old(house: Connection, pruner: Connection) -> None:
    at = days_ago(house, 50)
    odd = [
        f"evt_{at:012x}",
        f"evt_{at:012x}" + "0" * 20,
        f"evt_{at:012x}x",
        "evt_01JQ8X8F",
        "evt_00017",
        "evt_0",
        "Order-1",
    ]
    remember(house, "tally", odd, 50)
    ours = remember_from(house, "tally", 50)
    prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set(odd)
    assert claim_or_tell(house, "tally", [*odd, ours[0]]) == (set(), {ours[0]})
    assert claim(house, "tally", ["evt_00018", f"evt_{at:012x}y"]) == {"evt_00018", f"evt_{at:012x}y"}


def test_a_range_stays_while_one_of_those_who_share_the_database_may_need_it(
    house: Connection, pruner: Connection
) -> None:
    remember_from(house, "tally", 50)
    others = remember_from(house, "billing", 49)
    limits = {"tally": up_to(house, 30), "billing": up_to(house, 55, "orders.placed.v1 keeps its records")}
    first_kept = prune(pruner, "tally", limits, GO_ON)[-1]
    assert first_kept.kept_by == ("billing: orders.placed.v1 keeps its records",)
    assert known(house, "billing") == set(others)
    prune(pruner, "tally", limits | {"billing": up_to(house, 30)}, GO_ON)
    assert (known(house, "tally"), known(house, "billing")) == (set(), set())


def test_a_consumer_that_nobody_knows_keeps_what_it_has(house: Connection, pruner: Connection) -> None:
    theirs = remember_from(house, "retired", 50)
    verdict = prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)[-1]
    assert verdict.kept_by == ("retired has rows in it, and no projection of that name is known here",)
    assert known(house, "retired") == set(theirs)


def test_who_had_nothing_in_a_range_has_no_horizon_there(house: Connection, pruner: Connection) -> None:
    remember_from(house, "tally", 50)
    remember_from(house, "billing", 10)
    late_for_billing = id_at(days_ago(house, 50))
    prune(pruner, "tally", {"tally": up_to(house, 30), "billing": up_to(house, 30)}, GO_ON)
    assert list(horizons(house)) == ["tally"]
    assert claim(house, "billing", [late_for_billing]) == {late_for_billing}
    assert claim(house, "billing", [late_for_billing]) == set()


def test_an_event_in_quarantine_keeps_its_range_until_it_is_decided(house: Connection, pruner: Connection) -> None:
    event_id = remember_from(house, "tally", 50)[0]
    waiting = id_at(days_ago(house, 50))
    park(house, "tally", [Parked(record(b"{}"), Faulty(Category.HANDLER, "as the test wants it", waiting))])
    limits = {"tally": up_to(house, 30)}
    assert prune(pruner, "tally", limits, GO_ON)[-1].kept_by == KEPT_BY_ONE_PARKED
    assert event_id in known(house, "tally")
    house.execute("UPDATE quarantined_events SET state = 'released', closed_at = now()")
    prune(pruner, "tally", limits, GO_ON)
    assert known(house, "tally") == set()


@pytest.mark.parametrize("category", [Category.VERSION, Category.CONTRACT])
def test_a_parked_record_whose_id_cannot_be_read_yet_keeps_every_range(
    house: Connection, pruner: Connection, category: Category
) -> None:
    """Code that can read it may be on its way; a redrive with that must not find the event too old."""
    remember_from(house, "tally", 50)
    event = placed("ord_1", event_id=id_at(days_ago(house, 50)))
    parked = record(event.to_bytes(), event.key.encode())
    park(house, "tally", [Parked(parked, Faulty(category, "as the code of then saw it"))])
    limits = {"tally": up_to(house, 30)}
    verdicts = prune(pruner, "tally", limits, GO_ON)
    assert Redriver(Tally(), house).redrive(ParkedKey(parked.key), GO_ON).released == 1
    assert tally(house) == [event.event_id]
    assert dropped(verdicts) == []
    assert verdicts[-1].kept_by == KEPT_BY_ONE_PARKED
    house.execute("UPDATE processed_events SET processed_at = now() - interval '50 days'")
    assert dropped(prune(pruner, "tally", limits, GO_ON)) != []


@pytest.mark.parametrize("category", [Category.NO_VALUE, Category.NOT_JSON])
def test_a_parked_record_that_is_no_event_keeps_no_range(
    house: Connection, pruner: Connection, category: Category
) -> None:
    remember_from(house, "tally", 50)
    park(house, "tally", [Parked(record(b"\xff"), Faulty(category, "as the test wants it"))])
    prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set()


def test_an_event_that_is_too_old_keeps_nothing_in_the_inbox(house: Connection, pruner: Connection) -> None:
    old = remember_from(house, "tally", 50)[0]
    younger = remember_from(house, "tally", 40)
    prune(pruner, "tally", {"tally": up_to(house, 45)}, GO_ON)
    assert apply(house, placed("ord_1", event_id=old), projection=Tally()).parked != []
    assert known(house, "tally") == set(younger)
    prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set()


def test_an_old_event_that_was_applied_late_keeps_its_range(house: Connection, pruner: Connection) -> None:
    """Its record is as young as the day on which it was published."""
    [event_id] = remember(house, "tally", [id_at(days_ago(house, 50))], days=20)
    last = prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)[-1]
    assert last.range.number == number_of(event_id)
    assert "applied as late as" in last.kept_by[0]
    assert known(house, "tally") == {event_id}


def test_the_rehearsal_says_what_keeps_each_range_and_changes_nothing(house: Connection) -> None:
    ids = {*remember_from(house, "tally", 50), *remember_from(house, "tally", 20)}
    verdicts = examine(house, "tally", {"tally": up_to(house, 30)})
    assert dropped(verdicts) == sorted(dropped(verdicts))
    assert sum(each.rows or 0 for each in verdicts) == 3
    assert {each.kept_by for each in verdicts if each.kept_by} == {
        ("a topic still has it",),
        ("a topic still has it", "an older range is kept"),
    }
    assert len(verdicts) > len(dropped(verdicts)) > 5
    assert (known(house, "tally"), horizons(house)) == (ids, {})


def test_what_never_had_a_range_is_forgotten_too(house: Connection, pruner: Connection) -> None:
    ancient, old = remember_from(house, "tally", 3_000), remember_from(house, "tally", 50)
    young = remember_from(house, "tally", 10)
    assert table_of(house, ancient[0]) == "processed_events_rest"
    prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set(young)
    assert claim_or_tell(house, "tally", [ancient[0], old[0]]) == (set(), {ancient[0], old[0]})


def test_the_table_from_before_there_were_ranges_is_dropped_as_one(empty_dsn: str, tmp_path: Path) -> None:
    shutil.copy(inbox.MIGRATIONS.folder / "0001_inbox.sql", tmp_path)
    migrate(empty_dsn, [Migrations("inbox", tmp_path)])
    with connected(empty_dsn) as house:
        ids = [id_at(days_ago(house, days)) for days in (50, 60, 100)]
        remember(house, "tally", [*ids, "evt_01JQ8X8F", "evt_00017"], days=50)
        migrated(empty_dsn)
        let_time_pass_since_the_migration(house, table_of(house, ids[0]), days=45)
        prune(house, "tally", {"tally": up_to(house, 30)}, GO_ON)
        assert known(house, "tally") == {"evt_01JQ8X8F", "evt_00017"}
        assert table_of(house, "evt_01JQ8X8F") == "processed_events_other"
        assert claim_or_tell(house, "tally", [*ids, "evt_01JQ8X8F"]) == (set(), set(ids))


def let_time_pass_since_the_migration(house: Connection, table: str, days: float) -> None:
    """Ranges end at times of day that are what they are: so the table is given the end that it would have had then."""
    assert table.startswith("processed_events_before_")
    digits = f"{days_ago(house, days) >> 28:05x}"
    house.execute(f"ALTER TABLE processed_events DETACH PARTITION {table}")
    house.execute(f"ALTER TABLE {table} RENAME TO processed_events_before_{digits}")
    house.execute(
        f"ALTER TABLE processed_events ATTACH PARTITION processed_events_before_{digits}"
        f" FOR VALUES FROM ('evt_01') TO ('evt_{digits}')"
    )


def test_nothing_is_half_done_when_a_range_cannot_be_dropped(house: Connection, pruner: Connection) -> None:
    ids = remember_from(house, "tally", 50)
    house.execute(f"CREATE VIEW somebodys AS SELECT * FROM {table_of(house, ids[0])}")
    with pytest.raises(DependentObjectsStillExist):
        prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
    assert known(house, "tally") == set(ids)
    assert horizons(house) == {}


def test_while_a_batch_is_under_way_nothing_is_dropped(
    dsn: str, house: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.pruning.ATTEMPTS", 2)
    remember_from(house, "tally", 50)
    with connected(dsn) as consumer, connect(dsn, application_name="pruner", timeouts=Timeouts(lock=0.1)) as pruner:
        with consumer.transaction():
            assert len(claim(consumer, "tally", [id_at(days_ago(house, 50))])) == 1
            with pytest.raises(InboxBusy):
                prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
        assert len(known(house, "tally")) == 4
        house.execute("UPDATE processed_events SET processed_at = now() - interval '50 days'")
        prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
        assert known(house, "tally") == set()


def test_what_never_had_a_range_is_kept_too_while_a_batch_is_under_way(
    dsn: str, house: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That batch may have read the horizon, and an old event be the next that it claims."""
    monkeypatch.setattr("projections.pruning.ATTEMPTS", 2)
    ancient = remember_from(house, "tally", 3_000)
    impatient = Timeouts(lock=0.1)
    with (
        connected(dsn) as consumer,
        connect(dsn, application_name="pruner", timeouts=impatient) as pruner,
        consumer.transaction(),
    ):
        today = claim(consumer, "tally", [id_at(days_ago(house, 0))])
        with pytest.raises(InboxBusy):
            prune(pruner, "tally", {"tally": up_to(house, 30)}, GO_ON)
        assert horizons(house) == {}
    assert known(house, "tally") == {*ancient, *today}


@pytest.mark.parametrize("calls_before", [0, 10], ids=["first", "prepared"])
def test_a_claim_that_waited_for_a_drop_sees_the_horizon_it_left(
    dsn: str, house: Connection, calls_before: int
) -> None:
    """The claim comes when the range is being dropped, and goes on after the commit."""
    old = remember_from(house, "tally", 50)[0]
    with connected(dsn) as consumer, connected(dsn) as dropping, ThreadPoolExecutor() as threads:
        for _ in range(calls_before):
            claim(consumer, "tally", [id_at(days_ago(house, 1))])
        with dropping.transaction():
            dropping.execute("LOCK TABLE ONLY processed_events IN ACCESS EXCLUSIVE MODE")
            waiting = threads.submit(partial(claim_or_tell, consumer, "tally", [old]))
            eventually(partial(waits_for_a_lock, house, consumer.info.backend_pid), within=30)
            dropping.execute("INSERT INTO inbox_horizons VALUES ('tally', %s)", (f"evt_{number_of(old) + 1:05x}",))
            dropping.execute(f"DROP TABLE processed_events_{old[4:9]}")
        assert waiting.result(20) == (set(), {old})


def test_events_that_come_again_while_ranges_are_dropped_are_never_applied_twice(
    dsn: str, house: Connection, pruner: Connection
) -> None:
    """Two consumers read everything again and again; in the middle of it most of it is forgotten."""
    ids = [id_at(days_ago(house, days)) for days in range(20, 58) for _ in range(5)]
    events = [placed(f"ord_{n}", event_id=each) for n, each in enumerate(ids)]
    apply(house, *events, projection=Tally())
    house.execute("UPDATE processed_events SET processed_at = now() - interval '58 days'")
    done = Event()

    def read_again(contracts: list[Contract]) -> int:
        applied = 0
        with connected(dsn) as consumer:
            while not done.is_set():
                for start in range(0, len(contracts), 20):
                    with suppress(DeadlockDetected):  # the runner would do the batch again, as we do
                        applied += apply(consumer, *contracts[start : start + 20], projection=Tally()).applied
        return applied

    with ThreadPoolExecutor() as threads:
        readers = [threads.submit(partial(read_again, each)) for each in (list(events), list(events[::-1]))]
        try:
            for days in (50, 40, 30):
                prune(pruner, "tally", {"tally": up_to(house, days)}, GO_ON)
        finally:
            done.set()
        assert [each.result(60) for each in readers] == [0, 0]
    assert len(tally(house)) == len(set(tally(house))) == len(ids)
    assert horizons(house) != {}
