"""`counterfoil status` tells what drains from what does not, without asking the processes."""

import json
from collections.abc import Callable, Mapping

import pytest

from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from tests.acceptance.test_command_line import ORDER, Run, in_environment
from tests.support.kafka import EmptyTopics, Kafka
from tests.support.processes import Program, Programs
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

Start = Callable[..., Program]


@pytest.fixture
def env(store_dsn: str, inventory_dsn: str, kafka: Kafka, empty_topics: EmptyTopics) -> Mapping[str, str]:
    empty_topics(OrderPlaced.topic, OrderCancelled.topic, partitions=6)
    return {
        "COUNTERFOIL_STORE_DSN": store_dsn,
        "COUNTERFOIL_INVENTORY_DSN": inventory_dsn,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "COUNTERFOIL_TOPIC_REPLICATION_FACTOR": "1",
    }


@pytest.fixture
def counterfoil(env: Mapping[str, str]) -> Run:
    return in_environment(env)


@pytest.fixture
def start(env: Mapping[str, str], programs: Programs) -> Start:
    return lambda *command: programs.counterfoil(*command, env=env)


def lag(counterfoil: Run) -> object:
    projections = json.loads(counterfoil("status", "--json").stdout)["projections"]
    return next(each["lag"] for each in projections if each["projection"] == "inventory")


def test_records_that_nobody_takes_are_a_fault_until_a_projection_has_taken_them(
    counterfoil: Run, start: Start
) -> None:
    assert counterfoil("db", "migrate").returncode == 0
    start("project", "projections.order_summary")
    start("relay", "domain.orders")
    counterfoil(*ORDER)
    eventually(lambda: lag(counterfoil) == 1, within=60)
    eventually(lambda: counterfoil("status").returncode == 3, within=60)
    eventually(lambda: len(counterfoil("status").stderr.splitlines()) == 1, within=60)
    (fault,) = counterfoil("status").stderr.splitlines()
    assert fault.startswith("projection inventory: records have waited")
    assert fault.endswith("nobody takes them: start the projection")

    runner = start("project", "projections.inventory")
    eventually(lambda: lag(counterfoil) == 0, within=60)
    drained = counterfoil("status")
    assert (drained.returncode, drained.stderr) == (0, "")

    assert runner.stop(within=20) == 0
    assert counterfoil("status").returncode == 0
    counterfoil("orders", "cancel", "ord_1", "--reason", "changed my mind")
    eventually(lambda: counterfoil("status").returncode == 3, within=60)
