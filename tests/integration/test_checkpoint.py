"""Leases and checkpoints: one publisher at a time, and a position that only its holder moves, never back."""

import threading
import time
from collections.abc import Iterator

import pytest

from infrastructure import metrics
from infrastructure.checkpoint import advance, read_checkpoint
from infrastructure.lease import Lease, LeaseLost, acquire
from infrastructure.postgres import Connection
from tests.support.stored_events import autocommit, proxied
from tests.support.wait import eventually

RELAY = "orders"


@pytest.fixture
def one(store_dsn: str) -> Iterator[Connection]:
    with autocommit(store_dsn) as connection:
        yield connection


@pytest.fixture
def other(store_dsn: str) -> Iterator[Connection]:
    with autocommit(store_dsn) as connection:
        yield connection


def acquired(connection: Connection, seconds: float = 60) -> tuple[Lease, int]:
    answer = acquire(connection, RELAY, seconds)
    assert answer is not None
    return answer


def expire(connection: Connection) -> None:
    """As if the lease had lasted that long."""
    connection.execute("UPDATE relay_checkpoints SET lease_expires_at = clock_timestamp() - interval '1 s'")


def position(connection: Connection) -> int:
    status = read_checkpoint(connection, RELAY)
    assert status is not None
    return status.position


# --- One publisher at a time --------------------------------------------------------------------------


def test_a_new_relay_begins_at_position_0(one: Connection) -> None:
    assert read_checkpoint(one, RELAY) is None
    lease, position = acquired(one)
    assert (lease.epoch, position) == (1, 0)


def test_while_a_lease_runs_nobody_else_gets_one(one: Connection, other: Connection) -> None:
    acquired(one)
    assert acquire(other, RELAY, 60) is None
    assert acquire(one, RELAY, 60) is None, "not even the same process: it may have two relays"


def test_of_many_who_ask_at_once_one_gets_the_lease(store_dsn: str) -> None:
    start, won = threading.Barrier(8), []

    def ask() -> None:
        with autocommit(store_dsn) as connection:
            start.wait()
            won.append(acquire(connection, RELAY, 60) is not None)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_relays_of_other_names_do_not_mind(one: Connection, other: Connection) -> None:
    acquired(one)
    assert acquire(other, "payments", 60) is not None


def test_a_released_lease_is_free_at_once_and_the_position_goes_on(one: Connection, other: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 42)
    lease.release(one)
    assert not lease.is_provable
    successor, position = acquired(other)
    assert (successor.epoch, position) == (2, 42)


def test_an_expired_lease_is_taken_over_within_its_time(one: Connection, other: Connection) -> None:
    """The clock is the database's: nobody needs to tell the successor."""
    acquired(one, seconds=1)
    began = time.monotonic()
    assert acquire(other, RELAY, 60) is None
    successor, _ = eventually(lambda: acquire(other, RELAY, 60), within=5)
    assert 0.5 < time.monotonic() - began < 3
    assert successor.epoch == 2


def test_renewing_keeps_the_others_out(one: Connection, other: Connection) -> None:
    lease, _ = acquired(one, seconds=0.5)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        lease.renew(one)
        assert acquire(other, RELAY, 60) is None
        assert lease.is_provable
        time.sleep(0.1)


def test_advancing_renews_the_lease(one: Connection, other: Connection) -> None:
    lease, _ = acquired(one, seconds=0.5)
    until, at = time.monotonic() + 1.5, 0
    while time.monotonic() < until:
        advance(one, lease, at, at + 1)
        at += 1
        assert acquire(other, RELAY, 60) is None
        assert lease.is_provable
        time.sleep(0.1)


# --- A holder that slept through its lease ------------------------------------------------------------


def test_a_holder_knows_by_its_own_clock_when_it_can_no_longer_prove_the_lease(one: Connection) -> None:
    lease, _ = acquired(one, seconds=0.3)
    assert lease.is_provable
    eventually(lambda: not lease.is_provable, within=2)


def test_a_slow_reply_does_not_prolong_what_can_be_proven(store_dsn: str) -> None:
    """The lease counts from before it was asked for."""
    with proxied(store_dsn) as (proxy, through), autocommit(through) as connection:
        connection.execute("SELECT 1")
        proxy.pause_replies()
        threading.Timer(0.7, proxy.resume).start()
        lease, _ = acquired(connection, seconds=0.5)
        assert not lease.is_provable


def test_after_a_takeover_everything_the_old_holder_writes_is_refused(one: Connection, other: Connection) -> None:
    lost_before = metrics.RELAY_LEASES_LOST.labels(RELAY)._value.get()
    old, _ = acquired(one)
    advance(one, old, 0, 10)
    expire(other)
    new, position_found = acquired(other)
    assert position_found == 10
    for write in (
        lambda: advance(one, old, 10, 20),
        lambda: old.renew(one),
    ):
        with pytest.raises(LeaseLost) as lost:
            write()
        assert (lost.value.relay, lost.value.shard, lost.value.epoch) == (RELAY, 0, 1)
        assert not old.is_provable
    old.release(one)
    assert acquire(one, RELAY, 60) is None, "a late release does not free the successor's lease"
    advance(other, new, 10, 11)
    assert position(other) == 11
    assert metrics.RELAY_LEASES_LOST.labels(RELAY)._value.get() == lost_before + 2


def test_an_expired_lease_without_a_successor_may_still_record_what_was_published(one: Connection) -> None:
    lease, _ = acquired(one)
    expire(one)
    advance(one, lease, 0, 5)
    assert position(one) == 5
    assert acquire(one, RELAY, 60) is None, "and is renewed by it"


def test_two_acquisitions_of_one_process_are_told_apart(one: Connection) -> None:
    first, _ = acquired(one)
    first.release(one)
    second, _ = acquired(one)
    assert (first.owner, first.epoch) != (second.owner, second.epoch)
    with pytest.raises(LeaseLost):
        advance(one, first, 0, 1)


# --- The position -------------------------------------------------------------------------------------


def test_the_checkpoint_moves_only_from_where_it_was_read(one: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 10)
    for from_position in (0, 9, 11):
        with pytest.raises(LeaseLost):
            advance(one, lease, from_position, 20)
    assert position(one) == 10
    advance(one, lease, 10, 20)
    assert position(one) == 20


def test_the_checkpoint_never_moves_back(one: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 10)
    with pytest.raises(ValueError, match="never moves back"):
        advance(one, lease, 10, 9)
    assert position(one) == 10


def test_after_a_lost_reply_renewing_tells_where_the_checkpoint_stands(one: Connection, other: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 10)
    one.close()
    assert lease.renew(other) == 10


def test_positions_are_64_bit(one: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 2**62)
    assert position(one) == 2**62


def test_the_relay_is_seen_in_the_table(one: Connection) -> None:
    lease, _ = acquired(one)
    advance(one, lease, 0, 10)
    status = read_checkpoint(one, RELAY)
    assert status is not None
    assert (status.relay, status.position, status.epoch, status.owner) == (RELAY, 10, 1, lease.owner)
    assert status.leased is True
    assert 0 <= status.beat_age < 30
    expire(one)
    assert (status := read_checkpoint(one, RELAY)) is not None
    assert status.leased is False


# --- The cost -----------------------------------------------------------------------------------------


def test_a_checkpoint_moved_thousands_of_times_stays_one_page(one: Connection) -> None:
    """Every update is heap-only, so no index entry is written and the space is used again."""
    lease, _ = acquired(one)
    for at in range(3_000):
        advance(one, lease, at, at + 1)
    one.execute("SELECT pg_stat_force_next_flush()")
    updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'relay_checkpoints'"
    all_updates, heap_only = one.execute(updates).fetchone() or (0, 0)
    assert all_updates >= 3_000
    assert heap_only == all_updates
    (size,) = one.execute("SELECT pg_relation_size('relay_checkpoints')").fetchone() or (0,)
    assert size <= 16_384
