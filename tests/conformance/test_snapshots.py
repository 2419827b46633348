"""Snapshots are a cache and never a truth, beside events in memory and in PostgreSQL alike."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.snapshots import Outcome, Snapshot, SnapshotStore
from infrastructure.event_store import store_env
from tests.support.releases import Releases, releases
from tests.support.shop import BASKET, Shop


@pytest.fixture
def release() -> Iterator[Releases]:
    with releases() as installed:
        yield installed


@pytest.fixture(params=["memory", "postgres"])
def shop(request: pytest.FixtureRequest, release: Releases) -> Iterator[Shop]:
    env = store_env(request.getfixturevalue("store_dsn")) if request.param == "postgres" else None
    with Shop(env) as shop:
        shop.basket = release.install(BASKET)
        yield shop


# --- What a snapshot is good for ----------------------------------------------------------------------


def test_an_aggregate_with_a_snapshot_is_loaded_from_it_and_the_events_after_it_only(shop: Shop) -> None:
    shop.open_and_fill(events=12)
    at = shop.snapshot().originator_version
    assert at == 10
    shop.reads.clear()
    assert shop.load() == shop.replayed()
    assert shop.reads[0] == (at - 1, 12 - at + 1)


def test_a_snapshot_is_taken_once_in_so_many_events(shop: Shop) -> None:
    shop.open_and_fill(events=31)
    assert shop.counted(Outcome.TAKEN) == 6


def test_an_aggregate_of_few_events_gets_no_snapshot(shop: Shop) -> None:
    shop.open_and_fill(events=4)
    shop.load()
    assert shop.store.get("b-1") is None


def test_a_class_that_did_not_ask_for_snapshots_gets_none(shop: Shop, release: Releases) -> None:
    shop.basket = release.install(BASKET.replace("snapshot_every = 5", ""))
    shop.open_and_fill(events=12)
    assert shop.load() == shop.replayed()
    assert shop.store.get("b-1") is None


def test_what_is_unknown_is_not_found(shop: Shop) -> None:
    assert shop.find(shop.basket, "b-1") is None


def test_a_class_below_the_one_that_is_asked_for_is_loaded_as_what_it_is(shop: Shop, release: Releases) -> None:
    gift = release.install(BASKET + '\nclass Gift(Basket, topic="gift"):\n    pass\n')
    shop.basket = gift
    shop.open_and_fill(events=12)
    shop.basket = gift.__bases__[0]
    assert type(shop.load()) is gift
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.USED) > 0


def test_an_aggregate_of_another_class_is_refused_with_and_without_a_snapshot(shop: Shop, release: Releases) -> None:
    shop.open_and_fill(events=12)
    source = BASKET + BASKET.replace("Basket", "Box").replace('"basket"', '"box"')
    box = release.install(source)
    with pytest.raises(TypeError, match="is a Basket"):
        shop.find(box, "b-1")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["fill", "load", "forget", "damage", "release", "stall"]), max_size=40), st.data())
def test_whatever_happens_to_snapshots_the_state_is_what_the_events_make(
    shop: Shop, release: Releases, steps: list[str], data: st.DataObject
) -> None:
    basket_id = f"b-{len(shop.recorder.select_notifications(None, 100_000))}"
    shop.save(shop.basket.open(basket_id))
    for step in steps:
        kept = shop.store.get(basket_id)
        if step == "fill":
            shop.fill(data.draw(st.integers(1, 9)), basket_id)
        elif step == "release":
            version = data.draw(st.integers(1, 3))
            shop.basket = release.install(BASKET + f"\nBasket.snapshot_version = {version}\n")
        elif step == "damage" and kept is not None:
            at = data.draw(st.integers(0, len(kept.state) - 1))
            shop.store.put(replace(kept, state=kept.state[:at] + b"7" + kept.state[at + 1 :]))
        elif step == "stall" and kept is not None:
            shop.store.put(replace(kept, originator_version=data.draw(st.integers(-1, 60))))
        assert shop.load(basket_id) == shop.replayed(basket_id)


# --- Damaged, or of another history -------------------------------------------------------------------


def test_no_changed_byte_of_a_snapshot_ever_makes_another_state(shop: Shop) -> None:
    shop.open_and_fill(events=12)
    kept, replayed = shop.snapshot(), shop.replayed()
    shop.reads.clear()
    for at in range(len(kept.state)):
        shop.store.put(replace(kept, state=kept.state[:at] + bytes([kept.state[at] ^ 1]) + kept.state[at + 1 :]))
        assert shop.load() == replayed
    assert shop.counted(Outcome.DAMAGED) == len(kept.state)


@pytest.mark.parametrize(
    "damage",
    [
        {"state": b""},
        {"state": b"\x00\xff"},
        {"seal": b""},
        {"originator_version": 9},
        {"snapshot_version": 0},
        {"topic": "order"},
        {"topic": "no such thing"},
        {"topic": "os:system"},
        {"fingerprint": "0" * 32},
    ],
    ids=str,
)
def test_a_damaged_snapshot_is_dropped_and_made_anew(shop: Shop, damage: dict[str, Any]) -> None:
    shop.open_and_fill(events=12)
    shop.store.put(replace(shop.snapshot(), **damage))
    used, taken = shop.counted(Outcome.USED), shop.counted(Outcome.TAKEN)
    assert shop.load() == shop.replayed()
    assert (shop.counted(Outcome.USED), shop.counted(Outcome.TAKEN)) == (used, taken + 1)
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.USED) == used + 1


def test_a_snapshot_of_another_aggregate_is_never_taken_for_ones_own(shop: Shop) -> None:
    shop.open_and_fill(12, "b-1")
    shop.open_and_fill(12, "b-2")
    shop.store.put(replace(shop.snapshot(), originator_id="b-2"))
    assert shop.load("b-2") == shop.replayed("b-2")
    assert shop.counted(Outcome.DAMAGED) == 1


def test_a_snapshot_ahead_of_the_events_is_dropped(shop: Shop) -> None:
    """As when events were restored to an older state and the snapshots were not."""
    shop.open_and_fill(events=12)
    shop.store.put(replace(shop.snapshot(), originator_version=40))
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.AHEAD) == 1


def test_a_snapshot_of_another_history_of_as_many_events_is_dropped(shop: Shop) -> None:
    shop.open_and_fill(12, "b-1")
    other = replace(shop.snapshot(), originator_id="b-2")
    shop.basket.open("b-2")
    with Shop(None) as lost:
        lost.basket = shop.basket
        lost.open_and_fill(12, "b-2")
        other = lost.store.get("b-2")
    assert other is not None
    shop.open_and_fill(12, "b-2")
    shop.fill(99, "b-2")
    shop.store.put(other)
    assert shop.load("b-2") == shop.replayed("b-2")
    assert shop.counted(Outcome.DAMAGED) == 1


# --- Never in the way ---------------------------------------------------------------------------------


class Broken(SnapshotStore):
    """Out of order for reading, for writing, or both."""

    def __init__(self, whole: SnapshotStore, *ways: str) -> None:
        self.whole, self.ways = whole, ways

    def get(self, originator_id: str) -> Snapshot | None:
        if "get" in self.ways:
            raise OSError("out of order")
        return self.whole.get(originator_id)

    def put(self, snapshot: Snapshot) -> None:
        if "put" in self.ways:
            raise OSError("out of order")
        self.whole.put(snapshot)

    def count(self, topic: str, outcome: Outcome) -> None:
        self.whole.count(topic, outcome)


@pytest.mark.parametrize("ways", [("get",), ("put",), ("get", "put")], ids=str)
def test_snapshots_that_are_out_of_order_keep_nobody_from_saving_or_loading(shop: Shop, ways: tuple[str, ...]) -> None:
    whole, shop.loader._store = shop.store, Broken(shop.store, *ways)
    shop.open_and_fill(events=12)
    assert shop.load() == shop.replayed()
    assert shop.load().version == 12
    shop.loader._store = whole
    assert shop.counted(Outcome.UNAVAILABLE) == 1


def test_snapshots_are_used_again_when_they_are_back_in_order(shop: Shop) -> None:
    whole, shop.loader._store = shop.store, Broken(shop.store, "get")
    shop.open_and_fill(events=12)
    shop.loader._store = whole
    shop.loader._left_alone_until = 0
    shop.load()
    shop.load()
    assert shop.counted(Outcome.USED) == 1
