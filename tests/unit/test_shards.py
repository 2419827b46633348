"""Shards: a stable place for each aggregate, and a fair share for each process."""

from collections import Counter

import pytest

from infrastructure.relay_processes import Seat, Table, fair_shares
from infrastructure.shards import shard_of


def test_an_aggregate_has_the_same_shard_in_every_process_and_version() -> None:
    """Written down: another hash would let a key's events overtake one another during a rollout."""
    ids = ["ord_1", "ord_2", "ord_3", "Grüße", ""]
    assert [shard_of(each, 4) for each in ids] == [3, 1, 3, 1, 0]
    assert [shard_of(each, 7) for each in ids] == [3, 0, 1, 2, 0]
    assert {shard_of(each, 1) for each in ids} == {0}


def test_aggregates_spread_evenly_over_the_shards() -> None:
    found = Counter(shard_of(f"ord_{number}", 8) for number in range(8_000))
    assert len(found) == 8
    assert all(800 < count < 1_200 for count in found.values())


@pytest.mark.parametrize(
    ("holding", "shards", "shares"),
    [
        ({"a": 0}, 1, {"a": 1}),
        ({"a": 1, "b": 0}, 1, {"a": 1, "b": 0}),
        ({"a": 0, "b": 1}, 1, {"a": 0, "b": 1}),  # b has taken over from a, and keeps it
        ({"a": 4, "b": 0}, 4, {"a": 2, "b": 2}),
        ({"a": 2, "b": 2, "c": 0}, 4, {"a": 2, "b": 1, "c": 1}),
        ({"a": 1, "b": 2, "c": 1}, 4, {"a": 1, "b": 2, "c": 1}),  # fair already: nothing moves
        ({"a": 0, "b": 0, "c": 0}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": 3, "b": 0, "c": 0, "d": 0, "e": 0}, 3, {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}),
    ],
)
def test_shares_are_equal_but_for_one_and_nothing_moves_without_need(
    holding: dict[str, int], shards: int, shares: dict[str, int]
) -> None:
    assert fair_shares(holding, shards) == shares
    assert sum(shares.values()) == shards


def test_shards_whose_holder_is_not_alive_count_for_nobody() -> None:
    seats = (Seat(0, 2, "dead", False), Seat(1, 2, "a", False))
    assert Table(seats, ("a",)).share_of("a") == 2
    assert Table(seats, ("a", "b")).share_of("b") == 1


def test_a_process_counts_itself_before_others_see_it() -> None:
    assert Table((Seat(0, 1, None, False),), ()).share_of("new") == 1
