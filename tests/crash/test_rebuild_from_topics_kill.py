"""A rebuild from the topics, without a store, is killed on the way: what it has is kept, and nothing counts twice."""

import json

import pytest

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.postgres import Connection
from projections.inventory.projection import PROJECTION
from projections.rebuilding import state
from projections.rebuilding.source import PAGE
from tests.acceptance.test_command_line import in_environment
from tests.support.counting_inventory import folded
from tests.support.inventory import connected, count, everything, fill
from tests.support.kafka import EmptyTopics, Kafka
from tests.support.messages import Sender, cancelled, placed
from tests.support.processes import Program, Programs
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

ORDERS = 11_000
"""Two pages of the rebuild, and some."""
PLENTY = {"pen": 1_000_000, "ink": 1_000_000}


def applied(live: Connection) -> int:
    name = PROJECTION.consumer_name
    return state.progress(live, name).applied if state.find(live, name) else 0


@pytest.mark.timeout(300)
def test_killed_twice_it_goes_on_from_its_offsets_and_ends_as_the_fold_of_all_events(
    programs: Programs, inventory_dsn: str, kafka: Kafka, empty_topics: EmptyTopics
) -> None:
    empty_topics(OrderPlaced.topic, OrderCancelled.topic, partitions=3)
    orders = [placed(f"ord_{n}", ("pen", 1 + n % 3), ("ink", 1)) for n in range(ORDERS)]
    cancellations = [cancelled(f"ord_{n}") for n in range(0, ORDERS, 9)]
    sender = Sender(kafka.bootstrap)
    sender.contracts(OrderPlaced.topic, *orders, *orders[:50])
    sender.contracts(OrderCancelled.topic, *cancellations)
    env = {"COUNTERFOIL_INVENTORY_DSN": inventory_dsn, "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap}

    def rebuild(*options: str) -> Program:
        return programs.counterfoil(
            "rebuild", "projections.inventory", "--from-topic", "--patience", "1", *options, env=env
        )

    with connected(inventory_dsn) as live:
        fill(live, PLENTY)
        for before in (0, PAGE):
            begun = rebuild("--no-swap")
            eventually(lambda before=before: applied(live) > before, within=60, every=0.002)  # type: ignore[misc]
            begun.kill()
        counterfoil = in_environment(env)
        (shown,) = json.loads(counterfoil("rebuild", "status", "--json").stdout)
        assert (shown["source"], shown["state"]) == ("topics", "filling")
        assert PAGE < shown["position"] <= shown["highest_position"] == len(orders) + 50 + len(cancellations)
        assert "`counterfoil rebuild projections.inventory --from-topic` goes on" in counterfoil("status").stdout
        finished = rebuild("--accept-differences")
        assert finished.wait(120) == 0, finished.log_tail()
        contracts: list[Contract] = [*orders, *cancellations]
        assert everything(live) == folded(contracts, PLENTY)
        assert count(live, "processed_events") == len(contracts)
