"""Several consumers in one database at the same time, each with a connection and transactions of its own."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pytest
from psycopg import Connection

from domain.contracts import Contract
from projections.inventory.queries import Stock, stock
from tests.support.inventory import apply, connected, everything, fill
from tests.support.messages import cancelled, placed
from tests.support.together import together

CONSUMERS = 8


@pytest.fixture
def consumers(inventory_dsn: str) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connected(inventory_dsn)) for _ in range(CONSUMERS)]


def statuses(connection: Connection) -> Counter[object]:
    return Counter(status for _, status in everything(connection)["reservations"])


def deadlocks(connection: Connection) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    (number,) = connection.execute(query).fetchone() or (0,)
    assert isinstance(number, int)
    return number


def test_two_consumers_and_one_piece_left_give_one_reservation_every_time(consumers: list[Connection]) -> None:
    one, two = consumers[:2]
    for turn in range(100):
        sku = f"sku_{turn}"
        fill(one, {sku: 1})
        orders = [placed(f"ord_{turn}_{n}", (sku, 1)) for n in range(2)]
        outcomes = together([partial(apply, one, orders[0]), partial(apply, two, orders[1])])
        assert [(each.applied, each.parked) for each in outcomes] == [(1, []), (1, [])]
    assert statuses(one) == {"reserved": 100, "rejected": 100}
    assert all(each.reserved == 1 for each in stock(one))


def test_a_hundred_orders_for_ten_pieces_give_ten_reservations(consumers: list[Connection]) -> None:
    fill(consumers[0], {"pen": 10})
    orders = [placed(f"ord_{n}", ("pen", 1)) for n in range(100)]

    def work(connection: Connection, mine: Sequence[Contract]) -> None:
        for order in mine:
            apply(connection, order)

    together([partial(work, each, orders[n::CONSUMERS]) for n, each in enumerate(consumers)])
    assert statuses(consumers[0]) == {"reserved": 10, "rejected": 90}
    assert stock(consumers[0]) == [Stock("pen", 10, 10)]


def test_eight_consumers_with_batches_for_one_hot_sku_never_oversell_and_never_deadlock(
    consumers: list[Connection],
) -> None:
    """Each order also asks for a sku of its own choice, so that the consumers come to the hot one by different ways."""
    chance = random.Random(7)
    fill(consumers[0], {"hot": 300, "ant": 10_000, "zebra": 10_000})
    before = deadlocks(consumers[0])
    orders = [placed(f"ord_{n}", (chance.choice(["ant", "zebra"]), 1), ("hot", 1)) for n in range(800)]

    def work(connection: Connection, mine: Sequence[Contract]) -> None:
        for start in range(0, len(mine), 20):
            apply(connection, *mine[start : start + 20])

    together([partial(work, each, orders[n::CONSUMERS]) for n, each in enumerate(consumers)])
    assert deadlocks(consumers[0]) == before
    assert statuses(consumers[0]) == {"reserved": 300, "rejected": 500}
    sold = {each.sku: each.reserved for each in stock(consumers[0])}
    assert (sold["hot"], sold["ant"] + sold["zebra"]) == (300, 300)


def test_an_order_and_its_cancellation_at_the_same_moment_always_end_cancelled(consumers: list[Connection]) -> None:
    one, two = consumers[:2]
    fill(one, {"pen": 1000})
    for turn in range(100):
        order_id = f"ord_{turn}"
        together([partial(apply, one, placed(order_id, ("pen", 3))), partial(apply, two, cancelled(order_id))])
    assert statuses(one) == {"cancelled": 100}
    assert everything(one)["reservation_lines"] == []
    assert stock(one) == [Stock("pen", 1000, 0)]


def test_one_order_told_under_several_ids_at_the_same_moment_reserves_once(consumers: list[Connection]) -> None:
    fill(consumers[0], {"pen": 1000})
    for turn in range(20):
        together([partial(apply, each, placed(f"ord_{turn}", ("pen", 2))) for each in consumers])
    assert stock(consumers[0]) == [Stock("pen", 1000, 40)]


def test_batches_that_touch_the_same_orders_and_skus_in_any_order_never_deadlock(consumers: list[Connection]) -> None:
    """Every order is placed by one consumer and cancelled by another, in batches of different order."""
    chance = random.Random(7)
    skus = [f"sku_{n}" for n in range(6)]
    fill(consumers[0], dict.fromkeys(skus, 40))
    before = deadlocks(consumers[0])
    for turn in range(12):
        orders = [f"ord_{turn}_{n}" for n in range(40)]
        batches: list[list[Contract]] = [[] for _ in consumers]
        for order_id in orders:
            lines = [(sku, chance.randint(1, 3)) for sku in chance.sample(skus, 3)]
            giver, taker = chance.sample(batches, 2)
            giver.append(placed(order_id, *lines))
            taker.append(cancelled(order_id))
        for batch in batches:
            chance.shuffle(batch)
        together([partial(apply, each, *batch) for each, batch in zip(consumers, batches, strict=True)])
    assert deadlocks(consumers[0]) == before
    assert statuses(consumers[0]) == {"cancelled": 12 * 40}
    assert all(each.reserved == 0 for each in stock(consumers[0]))


@pytest.mark.parametrize("sku", ["pen", "chalk"], ids=["reserved", "rejected, and no stock row to lock"])
def test_known_orders_cancelled_by_all_consumers_in_any_order_never_deadlock(
    consumers: list[Connection], sku: str
) -> None:
    chance = random.Random(7)
    fill(consumers[0], {"pen": 1000})
    before = deadlocks(consumers[0])
    for turn in range(10):
        orders = [f"ord_{turn}_{n}" for n in range(40)]
        apply(consumers[0], *[placed(order_id, (sku, 2)) for order_id in orders])
        batches = [[cancelled(order_id) for order_id in chance.sample(orders, 40)] for _ in consumers]
        together([partial(apply, each, *batch) for each, batch in zip(consumers, batches, strict=True)])
    assert deadlocks(consumers[0]) == before
    assert statuses(consumers[0]) == {"cancelled": 400}
    assert stock(consumers[0]) == [Stock("pen", 1000, 0)]
