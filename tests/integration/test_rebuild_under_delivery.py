"""Orders go on coming by Kafka to a live runner while the inventory is rebuilt, from the store or from its topics."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from projections.rebuild import confirm, roll_back
from projections.rebuilding.stored import StoreSource
from projections.rebuilding.target import Target
from tests.support.counting_inventory import CountingInventory, counting_inventory, folded, held, once
from tests.support.inventory import connected, count, fill
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender
from tests.support.projecting import projecting
from tests.support.rebuilding import NEVER, place, rebuilt, told
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

PLENTY = {"pen": 1_000_000, "ink": 1_000_000, "pad": 1_000_000}
HISTORY = 300


@contextmanager
def orders_coming(target: Target, sender: Sender, topics: dict[bool, str]) -> Iterator[None]:
    """They are stored and published, all day long; some are published twice."""
    stop = Event()

    def publish(after: int) -> int:
        with target.connect_store() as store:
            for each in StoreSource(target, store).visible(after):
                after = each.event.position
                for contract in each.contracts:
                    topic = topics[isinstance(contract, OrderPlaced)]
                    sender.contracts(topic, *[contract] * (2 if after % 10 == 0 else 1))
        return after

    def work() -> None:
        number, position = HISTORY, publish(0)
        while not stop.wait(0.01):
            place(target.store_dsn or "", range(number, number + 3))
            number, position = number + 3, publish(position)

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            yield
        finally:
            stop.set()
        working.result(60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("from_topics", [False, True], ids=["store", "topics"])
def test_each_event_is_applied_once_in_the_new_tables_and_they_equal_a_fold_of_all(
    from_topics: bool, store_dsn: str, inventory_dsn: str, kafka: Kafka, topics: MakeTopic,
    unique_name: Callable[[str], str],
) -> None:  # fmt: skip
    by_kind = {True: topics("placed", partitions=3), False: topics("cancelled", partitions=2)}
    projection = CountingInventory(unique_name("inventory"), *by_kind.values())
    target = counting_inventory(projection, inventory_dsn, kafka.bootstrap, store_dsn)
    place(store_dsn, range(HISTORY))

    def all_applied(contracts: list[Contract]) -> bool:
        return count(live, "processed_events") == len(contracts)

    with connected(inventory_dsn) as live, projecting(projection, inventory_dsn, kafka.bootstrap, many=2):
        fill(live, PLENTY)
        with orders_coming(target, Sender(kafka.bootstrap), by_kind):
            eventually(lambda: count(live, "processed_events") > HISTORY, within=60)
            for _ in range(20):  # until the live runner had caught up at the swap
                swapped = rebuilt(target, from_topics=from_topics, patience=60.0).swapped
                assert swapped is not None
                if swapped.returnable:
                    break
                confirm(target)
            seen = count(live, "processed_events")
            eventually(lambda: count(live, "processed_events") > seen + 10, within=60)
            assert roll_back(target, NEVER, 60.0) is not None
        everything = told(target)
        eventually(lambda: all_applied(everything), within=60)
        assert held(live) == (folded(everything, PLENTY), once(everything))
