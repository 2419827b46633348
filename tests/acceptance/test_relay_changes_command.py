"""`counterfoil relay pause | resume | rewind | reshard`, as an operator meets them."""

import json

import pytest

from infrastructure.checkpoint import advance, read_checkpoints
from infrastructure.lease import acquire
from infrastructure.postgres import connect
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.relay_fleet import positions

RELAY = "domain.orders"


@pytest.fixture
def counterfoil(store_dsn: str) -> Run:
    return in_environment({"COUNTERFOIL_STORE_DSN": store_dsn})


@pytest.fixture
def has_run(store_dsn: str) -> None:
    """The relay of orders has published up to position 7, and nobody has its lease."""
    with connect(store_dsn, application_name="test") as connection:
        acquired = acquire(connection, RELAY, 60)
        assert acquired is not None
        advance(connection, acquired[0], 0, 7)
        acquired[0].release(connection)


@pytest.mark.usefixtures("has_run")
def test_a_pause_is_seen_in_status_and_why_until_the_relay_is_resumed(counterfoil: Run) -> None:
    paused = counterfoil("relay", "pause", RELAY)
    assert (paused.returncode, f"relay resume {RELAY}" in paused.stdout) == (0, True)
    (relay,) = json.loads(counterfoil("status", "--json").stdout)["relays"]
    assert (relay["paused"], [shard["shard"] for shard in relay["shards"]]) == (True, [0])
    why = counterfoil("relay", "why", RELAY)
    assert (why.returncode, "is paused since" in why.stderr) == (3, True)

    assert counterfoil("relay", "resume", RELAY).returncode == 0
    (relay,) = json.loads(counterfoil("status", "--json").stdout)["relays"]
    assert relay["paused"] is False


@pytest.mark.usefixtures("has_run")
def test_a_rewind_says_what_it_moved_and_refuses_what_is_no_way_back(store_dsn: str, counterfoil: Run) -> None:
    assert counterfoil("relay", "rewind", RELAY, "--to", "3", "--to-start").returncode == 2
    forward = counterfoil("relay", "rewind", RELAY, "--to", "8")
    assert (forward.returncode, "has reached 7" in forward.stderr) == (1, True)
    assert positions(store_dsn, RELAY) == [7]

    back = counterfoil("relay", "rewind", RELAY, "--to", "3")
    assert (back.returncode, back.stdout) == (0, f"{RELAY}, shard 0: from position 7 back to 3.\n")
    assert positions(store_dsn, RELAY) == [3]


def test_a_reshard_without_the_settings_of_a_relay_that_ran_effectively_once_is_refused(
    store_dsn: str, counterfoil: Run
) -> None:
    with connect(store_dsn, application_name="test") as connection:
        acquired = acquire(connection, RELAY, 60, delivery="effectively-once")
        assert acquired is not None
        acquired[0].release(connection)
    refused = counterfoil("relay", "reshard", RELAY, "--shards", "2")
    assert refused.returncode == 1
    assert "COUNTERFOIL_RELAY_DELIVERY=effectively-once" in refused.stderr
    assert positions(store_dsn, RELAY) == [0]


def test_the_number_of_shards_can_be_set_before_a_relay_first_runs_and_later(store_dsn: str, counterfoil: Run) -> None:
    assert counterfoil("relay", "reshard", "domain.oders", "--shards", "2").returncode == 1
    first = counterfoil("relay", "reshard", RELAY, "--shards", "2")
    assert (first.returncode, "1 shards before, 2 now" in first.stdout) == (0, True)
    with connect(store_dsn, application_name="test") as connection:
        assert [(each.shard, each.shards) for each in read_checkpoints(connection, RELAY)] == [(0, 2), (1, 2)]
        assert acquire(connection, RELAY, 60) is None
        assert read_checkpoints(connection, "domain.oders") == []
