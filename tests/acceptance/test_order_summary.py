"""The read model that the store feeds, by its commands: an order that was just placed can be read at once."""

import json
from collections.abc import Callable, Mapping

import pytest

from tests.acceptance.test_command_line import ORDER, Run, in_environment
from tests.support.processes import Program, Programs
from tests.support.wait import eventually


@pytest.fixture
def env(store_dsn: str) -> Mapping[str, str]:
    return {"COUNTERFOIL_STORE_DSN": store_dsn}


@pytest.fixture
def counterfoil(env: Mapping[str, str]) -> Run:
    return in_environment(env)


@pytest.fixture
def start(env: Mapping[str, str], programs: Programs) -> Callable[..., Program]:
    return lambda *command: programs.counterfoil(*command, env=env)


def test_an_order_is_read_at_the_position_at_which_it_was_stored(
    counterfoil: Run, start: Callable[..., Program]
) -> None:
    refused = counterfoil("project", "projections.order_summary")
    assert (refused.returncode, "db migrate" in refused.stderr) == (1, True)
    assert counterfoil("db", "migrate").returncode == 0
    runner = start("project", "projections.order_summary")
    for command in (ORDER, ("orders", "cancel", "ord_1", "--reason", "too late")):
        answer = json.loads(counterfoil(*command, "--json").stdout)
        position = answer["position"]
        summary = counterfoil("summary", "order", "ord_1", "--after", str(position), "--wait", "30", "--json")
        status = json.loads(summary.stdout)["status"]
        assert answer["placed_at"] == json.loads(summary.stdout)["placed_at"]
        assert status == ("placed" if command is ORDER else "cancelled")
    assert answer["placed_at"] in counterfoil("summary", "order", "ord_1").stdout
    shown = json.loads(counterfoil("summary", "customer", "cus_1", "--json").stdout)
    assert shown == [
        {
            "customer_id": "cus_1",
            "currency": "EUR",
            "orders": 0,
            "total_minor": 0,
            "cancelled": 1,
            "cancelled_minor": 690,
        }
    ]
    assert runner.stop(within=20) == 0
    late = counterfoil("summary", "order", "ord_1", "--after", str(position + 1), "--wait", "0.2")
    assert (late.returncode, "has not come to position" in late.stderr) == (1, True)


def test_the_work_is_divided_by_a_command_while_it_runs(counterfoil: Run, start: Callable[..., Program]) -> None:
    assert counterfoil("db", "migrate").returncode == 0
    start("project", "projections.order_summary")
    counterfoil(*ORDER)
    assert counterfoil("project", "shards", "projections.order_summary", "2").returncode == 0
    start("project", "projections.order_summary", "--shard", "1")
    missing = counterfoil("project", "projections.order_summary", "--shard", "2")
    assert (missing.returncode, "there is no 2" in missing.stderr) == (1, True)
    eventually(lambda: counterfoil("summary", "order", "ord_1").returncode == 0, within=60)


def test_whose_positions_are_missing_or_fall_behind_is_a_fault(counterfoil: Run) -> None:
    assert "order_summary: its tables are missing" in counterfoil("status").stderr
    assert counterfoil("db", "migrate").returncode == 0
    assert "order_summary: it has never run on this store" in counterfoil("status").stderr


def test_commands_about_what_only_kafka_needs_say_so(counterfoil: Run) -> None:
    for command in (("quarantine", "list"), ("inbox", "prune")):
        refused = counterfoil(*command, "projections.order_summary")
        assert (refused.returncode, "has neither inbox nor quarantine" in refused.stderr) == (1, True)


def test_a_projection_that_kafka_feeds_takes_no_shards(counterfoil: Run) -> None:
    assert counterfoil("project", "projections.inventory", "--shard", "0").returncode == 2
    assert counterfoil("project", "shards", "projections.inventory", "2").returncode == 1
