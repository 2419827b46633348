"""`counterfoil quarantine projections.inventory` beside a running projection: from the poison to the last follower."""

import json
from collections.abc import Mapping

import pytest

from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.inventory import connected, count
from tests.support.kafka import EmptyTopics, Kafka, MakeTopic
from tests.support.messages import Sender, cancelled, placed
from tests.support.processes import Programs
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

INVENTORY = "projections.inventory"


@pytest.fixture
def env(inventory_dsn: str, kafka: Kafka, empty_topics: EmptyTopics) -> Mapping[str, str]:
    empty_topics(OrderPlaced.topic, OrderCancelled.topic)
    return {
        "COUNTERFOIL_INVENTORY_DSN": inventory_dsn,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "COUNTERFOIL_QUARANTINE_PER_KEY": "3",
    }


@pytest.fixture
def counterfoil(env: Mapping[str, str]) -> Run:
    return in_environment(env)


def test_a_poisoned_key_is_found_decided_about_and_released_while_the_projection_runs(
    counterfoil: Run,
    env: Mapping[str, str],
    inventory_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    programs: Programs,
) -> None:
    sender, dead_letters = Sender(kafka.bootstrap), topics("dead")
    programs.counterfoil("project", INVENTORY, env=env)
    sender.send(OrderPlaced.topic, b"\xff", b"ord_1")
    sender.send(OrderPlaced.topic, b"\xff", None)
    sender.contracts(OrderPlaced.topic, placed("ord_1", ("pen", 1)), placed("ord_2", ("pen", 1)))
    with connected(inventory_dsn) as inventory:
        eventually(lambda: count(inventory, "reservations") == 1, within=60)
        sender.contracts(OrderCancelled.topic, cancelled("ord_1"))
        eventually(lambda: count(inventory, "quarantined_events") == 4, within=60)
    status = counterfoil("status")
    assert status.returncode == 3
    assert "the quarantine is full" in status.stderr
    assert "records in quarantine: 4, 2 of them behind others" in status.stderr

    culprit, *others = json.loads(counterfoil("quarantine", "list", INVENTORY, "--json").stdout)
    [lone] = [each for each in others if each["key"].startswith("entry:")]
    assert [each["kind"] for each in others if each["key"] == "ord_1"] == ["follower", "follower"]
    exported = counterfoil("quarantine", "export", INVENTORY, "--topic", dead_letters)
    assert (exported.returncode, "4 exported" in exported.stderr) == (0, True)

    failed = counterfoil("quarantine", "redrive", INVENTORY, "ord_1", "--json")
    assert (failed.returncode, json.loads(failed.stdout)["left"]) == (1, 3)
    assert counterfoil("quarantine", "redrive", INVENTORY, lone["key"]).returncode == 1
    for each in (culprit, lone):
        discarded = counterfoil("quarantine", "discard", INVENTORY, str(each["id"]), "--reason", "no order of ours")
        assert discarded.returncode == 0
    done = counterfoil("quarantine", "redrive", INVENTORY, "--all", "--json")
    assert (done.returncode, json.loads(done.stdout)["released"], json.loads(done.stdout)["left"]) == (0, 2, 0)
    with connected(inventory_dsn) as inventory:
        statuses = inventory.execute("SELECT order_id, status FROM reservations ORDER BY order_id").fetchall()
    assert statuses == [("ord_1", "cancelled"), ("ord_2", "rejected")]


def test_a_projection_is_not_to_read_its_own_dead_letters(counterfoil: Run) -> None:
    refused = counterfoil("quarantine", "export", INVENTORY, "--topic", OrderPlaced.topic)
    assert (refused.returncode, "its own dead letters" in refused.stderr) == (2, True)
