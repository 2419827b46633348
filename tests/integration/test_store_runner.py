"""A runner that is fed by the store goes on by itself, shares its work out, and stops in time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Event, Thread

import psycopg
import pytest

from infrastructure import metrics
from infrastructure.outgoing import Unmappable
from infrastructure.shards import shard_of
from projections import positions
from projections.positions import Place
from projections.resharding import CannotReshard, reshard
from projections.store_process import NoSuchShard, StoreRunner
from projections.store_runner import ShardRunner
from tests.support.feeding import feeding, settings
from tests.support.parcel_counts import OUTBOXES, ParcelCounts, counts, with_counts
from tests.support.parcels import Parcels, parcels_in
from tests.support.stored_events import proxied
from tests.support.wait import eventually

COUNTS = ParcelCounts()
NAMES = [f"parcel-{number}" for number in range(8)]


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_counts(store_dsn)


@pytest.fixture
def parcels(dsn: str) -> Iterator[Parcels]:
    with parcels_in(dsn) as parcels:
        yield parcels


def counting(
    dsn: str, projection: ParcelCounts = COUNTS, *, many: int = 1, only: Sequence[int] = (), **changes: object
) -> AbstractContextManager[None]:
    return feeding(dsn, projection, OUTBOXES, many, only, **changes)


def until_counted(parcels: Parcels, expected: Counter[str]) -> None:
    eventually(lambda: counts(parcels.connection) == expected, within=60)


def places(parcels: Parcels) -> list[Place]:
    return positions.read(parcels.connection, COUNTS.consumer_name)


def test_it_waits_out_a_server_that_is_away_and_goes_on(dsn: str, parcels: Parcels) -> None:
    with proxied(dsn) as (proxy, way), counting(way, consume_batch_size=3):
        parcels.move_all(["a"], 10)
        until_counted(parcels, Counter(a=10))
        proxy.cut()
        parcels.move_all(["a"], 10)
        proxy.resume()
        until_counted(parcels, Counter(a=20))


def test_a_commit_whose_reply_is_lost_is_not_repeated(dsn: str, parcels: Parcels) -> None:
    parcels.move_all(["a"], 10)
    with proxied(dsn) as (proxy, way):
        lost = proxy.lose_reply_to(b"COMMIT")
        with counting(way, consume_batch_size=3):
            assert lost.wait(30)
            until_counted(parcels, Counter(a=10))
            parcels.move("a")
            until_counted(parcels, Counter(a=11))


def test_several_that_run_the_same_count_each_event_once(dsn: str, parcels: Parcels) -> None:
    with counting(dsn, many=3, consume_batch_size=2):
        parcels.move_all(NAMES, 10)
        until_counted(parcels, Counter(dict.fromkeys(NAMES, 10)))


def test_processes_that_are_told_their_shards_do_these_and_no_others(dsn: str, parcels: Parcels) -> None:
    reshard(dsn, COUNTS, OUTBOXES, 2)
    parcels.move_all(NAMES, 2)
    of_the_first = {name: 2 for name in NAMES if shard_of(name, 2) == 0}
    with counting(dsn, only=[0]):
        until_counted(parcels, Counter(of_the_first))
        with counting(dsn, only=[1]):
            until_counted(parcels, Counter(dict.fromkeys(NAMES, 2)))
    with pytest.raises(NoSuchShard, match="has 2 shards, numbered from 0; there is no 2"):
        StoreRunner(COUNTS, OUTBOXES, dsn, settings(dsn), [2]).shards()


def test_new_shards_begin_where_the_first_of_the_old_ones_was_and_the_others_are_brought_there(
    dsn: str, parcels: Parcels
) -> None:
    reshard(dsn, COUNTS, OUTBOXES, 2)
    parcels.move_all(NAMES, 2)
    with counting(dsn, only=[0]):
        eventually(lambda: places(parcels)[0].position == 16, within=60)
    assert places(parcels)[1].position == 0
    assert reshard(dsn, COUNTS, OUTBOXES, 3).position == 16
    assert counts(parcels.connection) == dict.fromkeys(NAMES, 2)
    parcels.move_all(NAMES, 2)
    with counting(dsn):
        until_counted(parcels, Counter(dict.fromkeys(NAMES, 4)))
    assert [(place.shard, place.shards) for place in places(parcels)] == [(0, 3), (1, 3), (2, 3)]


def test_shards_are_changed_while_somebody_writes_and_a_position_between_them_was_never_used(
    dsn: str, parcels: Parcels
) -> None:
    """What a shard has passed was proven; nobody who writes now can still add an event there."""
    reshard(dsn, COUNTS, OUTBOXES, 2)
    with psycopg.connect(dsn) as burning:
        Parcels(burning).move("burned")
        burning.rollback()
    parcels.move_all(NAMES, 2)
    with counting(dsn, only=[0]):
        eventually(lambda: places(parcels)[0].position == 17, within=60)
    with psycopg.connect(dsn) as writing:
        Parcels(writing).move("open")
        assert reshard(dsn, COUNTS, OUTBOXES, 3).position == 17
        writing.rollback()
    assert counts(parcels.connection) == dict.fromkeys(NAMES, 2)


def test_shards_that_are_changed_under_runners_leave_nothing_out_and_apply_nothing_twice(
    dsn: str, parcels: Parcels
) -> None:
    with counting(dsn, many=2, consume_batch_size=3):
        for round_, shards in enumerate((3, 2, 4, 1), start=1):
            parcels.move_all(NAMES, 5)
            reshard(dsn, COUNTS, OUTBOXES, shards)
            eventually(lambda n=round_: min(place.position for place in places(parcels)) >= 40 * n - 20, within=60)
        until_counted(parcels, Counter(dict.fromkeys(NAMES, 20)))


def test_an_event_that_holds_one_shard_holds_no_other_and_no_new_shards_pass_it(dsn: str, parcels: Parcels) -> None:
    reshard(dsn, COUNTS, OUTBOXES, 2)
    held = shard_of("parcel-0", 2)
    parcels.move("parcel-0", note="!")
    parcels.move_all(NAMES, 1)
    with counting(dsn):
        until_counted(parcels, Counter(name for name in NAMES if shard_of(name, 2) != held))
        eventually(lambda: places(parcels)[1 - held].position == 9, within=60)
        with pytest.raises(Unmappable):
            reshard(dsn, COUNTS, OUTBOXES, 1)
    assert [place.position for place in places(parcels)] == [0 if shard == held else 9 for shard in (0, 1)]


def test_shards_are_not_changed_under_rows_of_another_version(dsn: str, parcels: Parcels) -> None:
    positions.begin(parcels.connection, COUNTS.consumer_name, COUNTS.version + 1)
    with pytest.raises(CannotReshard, match="rebuild"):
        reshard(dsn, COUNTS, OUTBOXES, 2)


def test_it_tells_how_far_it_is_behind_in_events_and_in_seconds(dsn: str, parcels: Parcels) -> None:
    go = Event()

    def not_yet(contract: object, tx: object) -> None:
        if not go.is_set():
            raise RuntimeError

    lag = [metrics.FEED_LAG.labels("parcel-counts", 0), metrics.FEED_WAITING.labels("parcel-counts", 0)]
    parcels.move_all(["a"], 3)
    with counting(dsn, ParcelCounts(not_yet)):
        eventually(lambda: lag[0]._value.get() == 3 and lag[1]._value.get() > 0, within=60)
        go.set()
        eventually(lambda: [each._value.get() for each in lag] == [0, 0], within=60)


def test_told_to_stop_it_ends_in_time_though_a_statement_waits(dsn: str, parcels: Parcels) -> None:
    parcels.move("a")
    stop = Event()
    positions.begin(parcels.connection, COUNTS.consumer_name, COUNTS.version)
    runner = Thread(target=ShardRunner(COUNTS, OUTBOXES, dsn, settings(dsn, stop_grace=2.0)).run, args=(stop,))
    with parcels.connection.transaction():
        parcels.connection.execute("LOCK TABLE counts IN ACCESS EXCLUSIVE MODE")
        runner.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: parcels.connection.execute(waiting).fetchone() == (1,), within=60)
        stop.set()
        runner.join(17)
        assert not runner.is_alive(), "it waited as long as its statement did"
    assert counts(parcels.connection) == {}


def test_the_name_of_a_projection_is_never_a_part_of_sql(dsn: str, parcels: Parcels) -> None:
    projection = ParcelCounts()
    projection.consumer_name = "a\"b'; DROP TABLE counts; -- " + "x" * 100
    parcels.move("a")
    with counting(dsn, projection):
        until_counted(parcels, Counter(a=1))
