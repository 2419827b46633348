"""Orders placed here are reserved over there: real processes, a real PostgreSQL, a real Kafka, and no mercy."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.event_store import store_env
from infrastructure.postgres import connect
from projections.inventory.queries import reservation, set_stock, stock
from tests.support.kafka import Kafka
from tests.support.processes import Program, Programs
from tests.support.published import published
from tests.support.wait import eventually

ORDERS = 200
PENS = 60


@pytest.fixture
def env(
    store_dsn: str, inventory_dsn: str, kafka: Kafka, empty_topics: Callable[..., None]
) -> Iterator[dict[str, str]]:
    empty_topics(OrderPlaced.topic, OrderCancelled.topic, partitions=6)
    yield {
        "COUNTERFOIL_STORE_DSN": store_dsn,
        "COUNTERFOIL_INVENTORY_DSN": inventory_dsn,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "COUNTERFOIL_TOPIC_REPLICATION_FACTOR": "1",
        "COUNTERFOIL_RELAY_LEASE": "3",
        "COUNTERFOIL_RELAY_BATCH_SIZE": "10",
        "COUNTERFOIL_CONSUME_BATCH_SIZE": "10",
        "COUNTERFOIL_SESSION_TIMEOUT": "6",
    }


def relay(programs: Programs, env: dict[str, str]) -> Program:
    return programs.counterfoil("relay", "domain.orders", env=env)


def runner(programs: Programs, env: dict[str, str]) -> Program:
    return programs.counterfoil("project", "projections.inventory", env=env)


def order(number: int) -> PlaceOrder:
    line = LineItem(sku="pen", quantity=1, unit_price_minor=345)
    return PlaceOrder(order_id=f"ord_{number}", customer_id="cus_1", currency="EUR", lines=(line,))


def statuses(inventory: psycopg.Connection) -> Counter[str]:
    found = (reservation(inventory, f"ord_{number}") for number in range(ORDERS))
    return Counter(each.status for each in found if each)


def processed(inventory: psycopg.Connection) -> list[str]:
    return [event_id for (event_id,) in inventory.execute("SELECT event_id FROM processed_events")]


def stored(env: dict[str, str]) -> int:
    with psycopg.connect(env["COUNTERFOIL_STORE_DSN"]) as store:
        return int((store.execute("SELECT count(*) FROM stored_events").fetchone() or (0,))[0])


def published_ids(env: dict[str, str]) -> set[str]:
    """Of both topics; a message that is there twice has one id."""
    bootstrap = env["COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS"]
    messages = published(bootstrap, OrderPlaced.topic) + published(bootstrap, OrderCancelled.topic)
    return {dict(message.headers)["ce_id"].decode() for message in messages}


def test_two_relays_and_two_runners_killed_on_the_way_lose_nothing_and_apply_nothing_twice(
    env: dict[str, str], programs: Programs
) -> None:
    with (
        closing(connect(env["COUNTERFOIL_INVENTORY_DSN"], application_name="test")) as inventory,
        closing(Orders(env=store_env(env["COUNTERFOIL_STORE_DSN"]))) as orders,
    ):
        set_stock(inventory, "pen", PENS)
        relays = [relay(programs, env), relay(programs, env)]
        runners = [runner(programs, env), runner(programs, env)]
        for number in range(ORDERS):
            orders.place(order(number))
            if number % 4 == 0:
                orders.cancel(CancelOrder(order_id=f"ord_{number}", reason="changed my mind"))
            if number == ORDERS // 3:
                eventually(lambda: statuses(inventory).total() > 0, within=60)
                relays.pop(0).send(signal.SIGKILL)
                runners.pop(0).send(signal.SIGKILL)
                relays.append(relay(programs, env))
                runners.append(runner(programs, env))

        eventually(lambda: statuses(inventory).total() == ORDERS, within=90)
        eventually(lambda: statuses(inventory)["cancelled"] == ORDERS // 4, within=60)
        ends = statuses(inventory)
        (pens,) = stock(inventory)
        assert pens.reserved == ends["reserved"] <= PENS
        assert ends["reserved"] + ends["rejected"] == ORDERS - ORDERS // 4
        events = ORDERS + ORDERS // 4
        eventually(lambda: len(processed(inventory)) == events, within=60)
        assert stored(env) == events
        assert set(processed(inventory)) == published_ids(env)
        assert inventory.execute("SELECT count(*) FROM quarantined_events").fetchone() == (0,)
        for program in relays + runners:
            assert program.stop(within=20) == 0, program.output()


def test_orders_stored_while_nothing_ran_arrive_once_it_runs_and_an_order_rolled_back_never_does(
    env: dict[str, str], programs: Programs
) -> None:
    with (
        closing(connect(env["COUNTERFOIL_INVENTORY_DSN"], application_name="test")) as inventory,
        closing(Orders(env=store_env(env["COUNTERFOIL_STORE_DSN"]))) as orders,
    ):
        set_stock(inventory, "pen", PENS)
        orders.place(order(0))
        with psycopg.connect(env["COUNTERFOIL_STORE_DSN"]) as writer:
            writer.execute(
                "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
                " SELECT 'ord_1', 1, topic, state FROM stored_events"
            )
            writer.rollback()
        orders.place(order(2))
        relay(programs, env)
        runner(programs, env)
        eventually(lambda: statuses(inventory)["reserved"] == 2, within=60)
        assert reservation(inventory, "ord_1") is None
        assert stock(inventory)[0].reserved == 2
