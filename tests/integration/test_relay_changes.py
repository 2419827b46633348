"""Pause, resume, rewind, reshard: nobody publishes meanwhile, nothing is lost, and a kill half way changes nothing."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from threading import Event, Thread

import psycopg
import pytest

from infrastructure import metrics
from infrastructure.checkpoint import advance, read_checkpoint, read_checkpoints
from infrastructure.health import relay_health
from infrastructure.lease import LeaseLost, Shard, acquire
from infrastructure.postgres import Connection, connect
from infrastructure.relay_changes import (
    ChangeUnderWay,
    NotBack,
    StillPublishing,
    UnknownRelay,
    pause,
    resume,
    rewind,
)
from infrastructure.resharding import reshard
from infrastructure.shards import shard_of
from tests.integration.test_store_set_back import lose_the_tail
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.relay_fleet import Topic, fleet, have_shards, owners, positions
from tests.support.relays import NEVER, steps
from tests.support.wait import eventually

KEYS = [f"p{number}" for number in range(20)]
LEASE = 2.0


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def operator(store_dsn: str) -> Iterator[Connection]:
    with connect(store_dsn, application_name="test operator") as connection:
        yield connection


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("parcels")


def in_order(topic: Topic, times: int) -> bool:
    return all(steps(topic.published, key) == list(range(1, times + 1)) for key in KEYS)


def ids(topic: Topic) -> list[bytes]:
    return [dict(message.headers)["ce_id"] for message in topic.published]


# --- Pause and resume ------------------------------------------------------------------------------------


def test_a_paused_relay_publishes_nothing_also_after_a_restart_until_it_is_resumed(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    parcels.move_all(KEYS, times=1)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn)
        eventually(lambda: positions(store_dsn, name) == [20, 20], within=20)
        assert pause(operator, name, 20, NEVER)
        parcels.move_all(KEYS, times=1)
        relays.start("two", store_dsn)
        relays.stop("one")
        eventually(lambda: metrics.RELAY_PAUSED.labels(name)._value.get() == 1)
        eventually(lambda: joined(operator, name) == 1)
        assert owners(store_dsn, name) == [None, None]
        assert (len(topic.messages), positions(store_dsn, name)) == (20, [20, 20])

        resume(operator, name)
        eventually(lambda: positions(store_dsn, name) == [40, 40], within=20)
        eventually(lambda: metrics.RELAY_PAUSED.labels(name)._value.get() == 0)
    assert len(topic.messages) == 40
    assert in_order(topic, 2)


def test_a_pause_that_is_not_heeded_is_said_and_stays(store_dsn: str, operator: Connection, name: str) -> None:
    assert acquire(operator, name, 60) is not None
    with pytest.raises(StillPublishing) as refused:
        pause(operator, name, 0.3, NEVER)
    assert len(refused.value.owners) == 1
    status = read_checkpoint(operator, name)
    assert status is not None
    assert status.paused


def test_who_slept_through_its_lease_finds_it_lost_once_a_pause_has_said_that_nobody_publishes(
    operator: Connection, name: str
) -> None:
    acquired = acquire(operator, name, 60)
    assert acquired is not None
    asleep, position = acquired
    operator.execute("UPDATE relay_checkpoints SET lease_expires_at = clock_timestamp() - interval '1 s'")

    assert pause(operator, name, 5, NEVER)

    with pytest.raises(LeaseLost):
        asleep.renew(operator)
    with pytest.raises(LeaseLost):
        advance(operator, asleep, position, 5)


def test_a_paused_relay_is_no_fault_until_an_event_has_waited_for_long(
    parcels: Parcels, operator: Connection, name: str
) -> None:
    lease, _ = acquire(operator, name, 60)  # type: ignore[misc]
    advance(operator, lease, 0, 0)
    lease.release(operator)
    pause(operator, name, 5, NEVER)
    operator.execute("UPDATE relay_checkpoints SET beat_at = beat_at - interval '1 hour'")
    (health,) = relay_health(operator)
    assert (health.paused, health.fault) == (True, None)

    operator.execute(
        "INSERT INTO stored_events (originator_id, originator_version, topic, state, stored_at) "
        "VALUES ('x', 1, 'parcel', '', clock_timestamp() - interval '2 minutes')"
    )
    (health,) = relay_health(operator)
    assert health.fault is not None
    assert health.fault.startswith("paused since")
    assert "relay resume" in health.fault


@pytest.mark.parametrize("change", [lambda c: pause(c, "nobody", 1, NEVER), lambda c: resume(c, "nobody")])
def test_a_relay_that_never_ran_is_not_invented(operator: Connection, change: Callable[[Connection], object]) -> None:
    with pytest.raises(UnknownRelay):
        change(operator)
    with pytest.raises(UnknownRelay):
        rewind(operator, "nobody", 0, 1, NEVER)
    assert read_checkpoints(operator, "nobody") == []


# --- Rewind ----------------------------------------------------------------------------------------------


def test_a_rewind_publishes_again_under_the_same_ids_while_the_relay_runs(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    parcels.move_all(KEYS, times=3)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn)
        eventually(lambda: positions(store_dsn, name) == [60, 60], within=20)
        generations = [status.generation for status in read_checkpoints(operator, name)]

        moved = rewind(operator, name, 20, 20, NEVER)
        assert [row.position for row in moved] == [60, 60]
        eventually(lambda: positions(store_dsn, name) == [60, 60] and len(topic.messages) == 100, within=20)
    assert [status.generation for status in read_checkpoints(operator, name)] == [each + 1 for each in generations]
    assert set(ids(topic)[60:]) == {ids(topic)[at] for at in range(60) if topic.published[at].position > 20}
    assert len(set(ids(topic))) == 60
    assert in_order(topic, 3)


def test_a_paused_relay_that_is_moved_back_stays_paused(operator: Connection, name: str) -> None:
    lease, _ = acquire(operator, name, 60)  # type: ignore[misc]
    advance(operator, lease, 0, 50, b"anchor")
    lease.release(operator)
    pause(operator, name, 5, NEVER)
    rewind(operator, name, 10, 5, NEVER)
    status = read_checkpoint(operator, name)
    assert status is not None
    assert (status.position, status.anchor, status.paused) == (10, None, True)
    assert acquire(operator, name, 60) is None


def test_only_shards_beyond_the_position_are_moved_and_none_is_moved_forward(
    store_dsn: str, operator: Connection, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    lease, _ = acquire(operator, Shard(name, 1, 2), 60)  # type: ignore[misc]
    advance(operator, lease, 0, 50)
    lease.release(operator)
    with pytest.raises(NotBack) as refused:
        rewind(operator, name, 51, 5, NEVER)
    assert refused.value.reached == 50
    assert [row.shard for row in rewind(operator, name, 10, 5, NEVER)] == [1]
    assert positions(store_dsn, name) == [0, 10]


def test_a_rewind_ends_the_alarm_of_a_store_that_was_set_back(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str
) -> None:
    parcels.move_all(KEYS, times=1)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn)
        eventually(lambda: positions(store_dsn, name) == [20], within=20)
        lose_the_tail(store_dsn, positions=5)
        parcels.move_all(["new"], times=10)
        eventually(lambda: "set back" in str(relay_health(operator)[0].fault))
        rewind(operator, name, 15, 20, NEVER)
        eventually(lambda: positions(store_dsn, name) == [25], within=20)
    assert steps(topic.published, "new") == list(range(1, 11))


# --- Reshard ---------------------------------------------------------------------------------------------


def test_the_number_of_shards_changes_under_load_without_loss_and_in_order_per_key(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str
) -> None:
    enough, times = Event(), 0

    def write() -> None:
        nonlocal times
        while not enough.wait(0.02):
            parcels.move_all(KEYS, times=1)
            times += 1

    writer = Thread(target=write)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn, relay_lease=LEASE, relay_batch_size=10)
        relays.start("two", store_dsn, relay_lease=LEASE, relay_batch_size=10)
        writer.start()
        try:
            for shards in (4, 2, 3):
                eventually(lambda: topic.messages, within=20)
                done = reshard(operator, name, shards, 30, NEVER)
                assert done.after == shards
                enough_more = len(topic.messages) + 50
                eventually(lambda many=enough_more: len(topic.messages) > many, within=30)  # type: ignore[misc]
        finally:
            enough.set()
            writer.join()
        eventually(lambda: positions(store_dsn, name) == [times * len(KEYS)] * 3, within=30)
        assert set().union(*relays.held().values()) == {0, 1, 2}
    assert in_order(topic, times)
    assert len(set(ids(topic))) == times * len(KEYS)


def test_new_shards_begin_at_the_lowest_position_of_the_old_ones_and_only_what_lies_above_is_repeated(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    parcels.move_all(KEYS, times=2)
    lease, _ = acquire(operator, Shard(name, 0, 2), 60)  # type: ignore[misc]
    advance(operator, lease, 0, 30)  # as if it had published its own up to there
    lease.release(operator)
    lease, _ = acquire(operator, Shard(name, 1, 2), 60)  # type: ignore[misc]
    advance(operator, lease, 0, 10)
    lease.release(operator)

    done = reshard(operator, name, 3, 5, NEVER)

    assert (done.before, done.after, done.position, done.repeats_up_to) == (2, 3, 10, 30)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn)
        eventually(lambda: positions(store_dsn, name) == [40, 40, 40], within=20)
    assert sorted(message.position for message in topic.published) == list(range(11, 41))
    assert all({shard_of(key.decode(), 3) for key in keys} == {shard} for shard, keys in topic.by_shard().items())


def test_resharding_waits_until_the_last_lease_of_the_old_layout_has_run_out(operator: Connection, name: str) -> None:
    acquired = acquire(operator, name, 1.5)
    assert acquired is not None
    lease, _ = acquired
    began = time.monotonic()
    reshard(operator, name, 2, 20, NEVER)
    assert time.monotonic() - began > 1.0
    assert not lease.is_provable, "so whoever had it sends nothing more"


def test_a_lease_that_does_not_end_keeps_the_layout_and_the_relay_goes_on(operator: Connection, name: str) -> None:
    acquired = acquire(operator, name, 60)
    assert acquired is not None
    with pytest.raises(StillPublishing):
        reshard(operator, name, 2, 0.3, NEVER)
    status = read_checkpoint(operator, name)
    assert status is not None
    assert (status.shards, status.paused, status.generation) == (1, False, 1)
    advance(operator, acquired[0], 0, 5)


def test_one_that_is_killed_while_it_waits_leaves_the_old_shards_which_go_on_by_themselves(
    store_dsn: str, parcels: Parcels, operator: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infrastructure.relay_changes._ASIDE", 2.0)
    acquire(operator, name, 60)
    with connect(store_dsn, application_name="test killed") as killed:
        asked = in_a_thread(psycopg.Error, lambda: reshard(killed, name, 2, 60, NEVER))
        eventually(lambda: paused_until(operator, name))
        operator.execute("SELECT pg_terminate_backend(%s)", (killed.info.backend_pid,))
        asked.join(20)
    operator.execute("UPDATE relay_checkpoints SET owner = NULL, lease_expires_at = NULL")
    parcels.move_all(KEYS, times=1)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn)
        eventually(lambda: positions(store_dsn, name) == [20], within=30)
    assert in_order(topic, 1)


def test_one_that_dies_inside_its_transaction_changes_nothing(operator: Connection, store_dsn: str, name: str) -> None:
    have_shards(store_dsn, name, 3)
    operator.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$; "
        "CREATE TRIGGER die AFTER INSERT ON relay_checkpoints FOR EACH ROW WHEN (NEW.shard = 1) EXECUTE FUNCTION die()"
    )
    before = read_checkpoints(operator, name)
    with connect(store_dsn, application_name="test killed") as killed, pytest.raises(psycopg.Error):
        reshard(killed, name, 2, 5, NEVER)
    after = read_checkpoints(operator, name)
    assert [(each.shard, each.shards, each.epoch) for each in after] == [
        (each.shard, each.shards, each.epoch) for each in before
    ]


def test_what_went_wrong_is_said_also_when_the_server_goes_away_right_after_it(
    store_dsn: str, operator: Connection, name: str
) -> None:
    assert acquire(operator, name, 60) is not None
    with connect(store_dsn, application_name="test cut off") as cut_off:

        class CutOffAndStopped(Event):
            def wait(self, timeout: float | None = None) -> bool:
                operator.execute("SELECT pg_terminate_backend(%s, 10000)", (cut_off.info.backend_pid,))
                return True

        with pytest.raises(StillPublishing):
            reshard(cut_off, name, 2, 60, CutOffAndStopped())


def test_a_second_change_at_the_same_time_is_refused(store_dsn: str, operator: Connection, name: str) -> None:
    acquire(operator, name, 60)
    with connect(store_dsn, application_name="test second") as first:
        waiting = in_a_thread(StillPublishing, lambda: reshard(first, name, 2, 3, NEVER))
        eventually(lambda: paused_until(operator, name))
        with pytest.raises(ChangeUnderWay):
            reshard(operator, name, 4, 5, NEVER)
        with pytest.raises(ChangeUnderWay):
            rewind(operator, name, 0, 5, NEVER)
        waiting.join(20)


def paused_until(connection: Connection, relay: str) -> datetime | None:
    row = connection.execute("SELECT paused_until FROM relay_checkpoints WHERE relay = %s", (relay,)).fetchone()
    return row[0] if row else None


def joined(connection: Connection, relay: str) -> int:
    return connection.execute("SELECT count(*) FROM relay_processes WHERE relay = %s", (relay,)).fetchall()[0][0]


def in_a_thread(error: type[Exception], call: Callable[[], object]) -> Thread:
    """It runs and ends with this error; another end fails the test."""

    def run() -> None:
        with pytest.raises(error):
            call()

    thread = Thread(target=run)
    thread.start()
    return thread
