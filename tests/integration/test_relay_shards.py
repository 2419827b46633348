"""N shards and any number of processes: each event published by one of them, in order per key, shares kept fair."""

from collections.abc import Callable, Iterator

import pytest

from infrastructure import metrics
from infrastructure.checkpoint import read_checkpoints
from infrastructure.lease import Shard, acquire
from infrastructure.outbox_relay import Relay
from infrastructure.postgres import connect
from infrastructure.relay_shard import ShardThread
from infrastructure.shards import shard_of
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.relay_fleet import NoTopics, Topic, fleet, have_shards, owners, positions
from tests.support.relays import ENDS_WITHIN, NEVER, Recorder, settings_for, steps
from tests.support.stored_events import proxied
from tests.support.wait import eventually

KEYS = [f"p{number}" for number in range(20)]
LEASE = 2.0


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("parcels")


def all_in_order(topic: Topic, times: int) -> bool:
    return all(steps(topic.published, key) == list(range(1, times + 1)) for key in KEYS)


# --- What is published -----------------------------------------------------------------------------------


def test_each_event_is_published_once_by_the_shard_of_its_aggregate_and_all_checkpoints_reach_the_end(
    store_dsn: str, parcels: Parcels, name: str
) -> None:
    have_shards(store_dsn, name, 4)
    parcels.move_all(KEYS, times=10)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", store_dsn, relay_batch_size=7)
        eventually(lambda: positions(store_dsn, name) == [200] * 4, within=30)
        assert relays.held() == {"one": {0, 1, 2, 3}}
    assert len(topic.messages) == 200
    assert all_in_order(topic, 10)
    for shard, keys in topic.by_shard().items():
        assert {shard_of(key.decode(), 4) for key in keys} == {shard}


def test_two_processes_share_the_shards_a_third_gets_its_part_and_who_leaves_is_replaced(
    store_dsn: str, parcels: Parcels, name: str
) -> None:
    have_shards(store_dsn, name, 4)
    with fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:

        def shares() -> list[int]:
            held = list(relays.held().values())
            fair = set().union(*held) == {0, 1, 2, 3} and sum(map(len, held)) == 4
            return sorted(map(len, held)) if fair else []

        relays.start("one", store_dsn, relay_lease=LEASE)
        relays.start("two", store_dsn, relay_lease=LEASE)
        eventually(lambda: shares() == [2, 2], within=30)
        parcels.move_all(KEYS, times=3)
        relays.start("three", store_dsn, relay_lease=LEASE)
        eventually(lambda: shares() == [1, 1, 2], within=30)
        parcels.move_all(KEYS, times=3)
        relays.stop("one")
        eventually(lambda: shares() == [2, 2], within=30)
        parcels.move_all(KEYS, times=3)
        eventually(lambda: positions(store_dsn, name) == [180] * 4, within=30)
    assert len(topic.messages) == 180, "shards change hands after a batch: nothing is repeated"
    assert all_in_order(topic, 9)


def test_with_more_processes_than_shards_the_others_stand_by_and_nothing_moves_without_need(
    store_dsn: str, name: str
) -> None:
    with fleet(parcel_outbox("parcels", name), Topic()) as relays:
        relays.start("one", store_dsn, relay_lease=LEASE)
        eventually(lambda: relays.held() == {"one": {0}}, within=20)
        epoch = epochs(store_dsn, name)
        relays.start("two", store_dsn, relay_lease=LEASE)
        relays.start("three", store_dsn, relay_lease=LEASE)
        eventually(lambda: alive(store_dsn, name) == 3, within=20)
        relays.stop("three")
        assert relays.held() == {"one": {0}, "two": set()}
        assert epochs(store_dsn, name) == epoch
        relays.stop("one")
        eventually(lambda: relays.held() == {"two": {0}}, within=20)


def test_events_of_other_shards_alone_move_the_checkpoint_only_now_and_then_and_at_the_latest_when_it_is_let_go(
    store_dsn: str, parcels: Parcels, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infrastructure.outbox_relay._NOW_AND_THEN", 3_600.0)
    have_shards(store_dsn, name, 2)
    others = next(key for key in KEYS if shard_of(key, 2) == 1)
    with connect(store_dsn, application_name="test") as connection:
        acquired = acquire(connection, Shard(name, 0, 2), 60)
        assert acquired is not None
        relay = Relay(parcel_outbox("parcels", name), Recorder(), *acquired, batch_size=500)
        relay.connect(connection)
        parcels.move(others)
        assert relay.step(NEVER).position == 1
        for position in range(2, 10):
            parcels.move(others)
            assert relay.step(NEVER).position == position
        assert positions(store_dsn, name)[0] == 1
        relay.release()
    assert positions(store_dsn, name) == [9, 0]


def test_a_shard_soon_looks_again_also_when_it_found_nothing_but_events_of_other_shards(
    store_dsn: str, parcels: Parcels, name: str
) -> None:
    """Its own may be the next one, and while much is stored hints are few."""
    have_shards(store_dsn, name, 2)
    parcels.move(next(key for key in KEYS if shard_of(key, 2) == 1))
    polls = metrics.WAKE_UPS.labels("poll")._value
    with connect(store_dsn, application_name="test") as connection:
        acquired = acquire(connection, Shard(name, 0, 2), 60)
    assert acquired is not None
    relay = Relay(parcel_outbox("parcels", name), Recorder(), *acquired, batch_size=500)
    settings = settings_for(store_dsn, "127.0.0.1:1", relay_poll_idle=300)
    shard = ShardThread(relay, Recorder(), settings, NoTopics())  # type: ignore[arg-type]  # there is no Kafka
    before = polls.get()
    shard.start()
    try:
        eventually(lambda: polls.get() > before)
    finally:
        shard.let_go()
        shard.join(ENDS_WITHIN)
    assert not shard.alive


def test_shards_that_do_not_end_are_waited_for_until_one_moment_and_not_twice_when_the_process_stops(
    store_dsn: str, parcels: Parcels, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = [0.0], []

    def hang(_thread: ShardThread, seconds: float) -> None:
        now[0] += seconds
        waited.append(seconds)

    have_shards(store_dsn, name, 2)
    with fleet(parcel_outbox("parcels", name), Topic()) as relays:
        relays.start("one", store_dsn, stop_grace=20.0)
        eventually(lambda: relays.held() == {"one": {0, 1}}, within=20)
        monkeypatch.setattr("infrastructure.relay_loop.monotonic", lambda: now[0])
        monkeypatch.setattr(ShardThread, "join", hang)
        relays.stop("one")
    assert (len(waited), sum(waited)) == (4, 18.5)


# --- Out of the network ------------------------------------------------------------------------------------


def test_the_shards_of_a_process_that_is_cut_off_are_taken_over_and_it_sends_nothing_more(
    store_dsn: str, parcels: Parcels, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    with proxied(store_dsn) as (proxy, through), fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("cut", through, relay_lease=LEASE)
        eventually(lambda: relays.held() == {"cut": {0, 1}}, within=20)
        relays.start("other", store_dsn, relay_lease=LEASE)
        eventually(lambda: all(len(held) == 1 for held in relays.held().values()), within=20)
        parcels.move_all(KEYS, times=2)
        eventually(lambda: positions(store_dsn, name) == [40, 40], within=20)
        proxy.blackhole()
        parcels.move_all(KEYS, times=2)
        eventually(lambda: positions(store_dsn, name) == [80, 80], within=LEASE + 20)
        assert relays.held()["other"] == {0, 1}
        proxy.resume()
        eventually(lambda: all(len(held) == 1 for held in relays.held().values()), within=30)
        parcels.move_all(KEYS, times=2)
        eventually(lambda: positions(store_dsn, name) == [120, 120], within=30)
    assert all_in_order(topic, 6)


# --- Who may have a shard ------------------------------------------------------------------------------------


def test_a_process_that_knows_the_old_number_of_shards_gets_no_lease_and_makes_no_row(
    store_dsn: str, name: str
) -> None:
    have_shards(store_dsn, name, 2)
    with connect(store_dsn, application_name="test") as connection:
        for stale in (Shard(name, 0, 1), Shard(name, 2, 3), Shard(name, 1, 3)):
            assert acquire(connection, stale, 60) is None
        assert [status.shards for status in read_checkpoints(connection, name)] == [2, 2]
        assert acquire(connection, Shard(name, 1, 2), 60) is not None
    assert [owner is not None for owner in owners(store_dsn, name)] == [False, True]


def epochs(dsn: str, relay: str) -> list[int]:
    with connect(dsn, application_name="test") as connection:
        return [status.epoch for status in read_checkpoints(connection, relay)]


def alive(dsn: str, relay: str) -> int:
    with connect(dsn, application_name="test") as connection:
        return connection.execute("SELECT count(*) FROM relay_processes WHERE relay = %s", (relay,)).fetchall()[0][0]
