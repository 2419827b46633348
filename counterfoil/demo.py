"""The main job end to end on real processes: services, a relay, a projection runner, and a few orders."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from counterfoil.embedded import Child, EmbeddedBroker, EmbeddedPostgres
from domain.errors import CounterfoilError
from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure.event_store import store_env
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import connect
from projections.inventory import MIGRATIONS
from projections.inventory.queries import Reservation, reservation, set_stock

STOCK = {"pen": 10, "ink": 3}
ARRIVAL_LIMIT = 60.0


@dataclass(eq=False)
class DemoStopped(CounterfoilError):
    """A process of the demo ended, or an order did not arrive in time. log: the end of what the process wrote."""

    what: str
    log: str

    def __str__(self) -> str:
        return f"{self.what}. The end of its log:\n{self.log}"


@dataclass(frozen=True)
class House:
    """Everything up: where it is, as environment variables, and the two processes."""

    env: Mapping[str, str]
    processes: Mapping[str, Child]

    @property
    def store_dsn(self) -> str:
        return self.env["COUNTERFOIL_STORE_DSN"]

    @property
    def inventory_dsn(self) -> str:
        return self.env["COUNTERFOIL_INVENTORY_DSN"]

    def check(self) -> None:
        for name, process in self.processes.items():
            if not process.running:
                raise DemoStopped(f"The {name} has ended with code {process.returncode}", process.log_tail())


@contextmanager
def open_house() -> Iterator[House]:
    """Starts PostgreSQL, a broker, a relay and an inventory runner; ends them in the opposite order."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-demo-")))
        postgres = stack.enter_context(EmbeddedPostgres())
        broker = stack.enter_context(EmbeddedBroker())
        env = {
            "COUNTERFOIL_STORE_DSN": postgres.create_database("orders"),
            "COUNTERFOIL_INVENTORY_DSN": postgres.create_database("inventory"),
            "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "COUNTERFOIL_TOPIC_REPLICATION_FACTOR": "1",
            "COUNTERFOIL_SESSION_TIMEOUT": "6",
        }
        migrate(env["COUNTERFOIL_STORE_DSN"], STORE_MIGRATIONS)
        migrate(env["COUNTERFOIL_INVENTORY_DSN"], MIGRATIONS)
        processes = {}
        for name, arguments in (
            ("relay", ("relay", "domain.orders")),
            ("inventory runner", ("project", "projections.inventory")),
        ):
            process = Child(
                [sys.executable, "-m", "counterfoil", *arguments],
                log=logs / f"{arguments[0]}.log",
                env=os.environ | env,
            )
            stack.callback(process.stop)
            processes[name] = process
        yield House(env, processes)


def order(order_id: str, sku: str, quantity: int) -> PlaceOrder:
    line = LineItem(sku=sku, quantity=quantity, unit_price_minor=345)
    return PlaceOrder(order_id=order_id, customer_id="cus_17", currency="EUR", lines=(line,))


def place_some_orders(house: House) -> dict[str, str]:
    """Places, repeats and cancels; returns what inventory must make of each order."""
    with closing(connect(house.inventory_dsn, application_name="counterfoil demo")) as inventory:
        for sku, on_hand in STOCK.items():
            set_stock(inventory, sku, on_hand)
    with closing(Orders(env=store_env(house.store_dsn))) as orders:
        orders.place(order("ord_1", "pen", 2))
        orders.place(order("ord_1", "pen", 2))  # sent twice: the same order
        orders.place(order("ord_2", "ink", 5))  # more than there is
        orders.place(order("ord_3", "pen", 4))
        orders.cancel(CancelOrder(order_id="ord_3", reason="changed my mind"))
    return {"ord_1": "reserved", "ord_2": "rejected", "ord_3": "cancelled"}


def watch_them_arrive(house: House, expected: Mapping[str, str], stop: Event) -> dict[str, Reservation]:
    """Waits until inventory has decided on every order. Raises DemoStopped."""
    deadline = time.monotonic() + ARRIVAL_LIMIT
    with closing(connect(house.inventory_dsn, application_name="counterfoil demo")) as inventory:
        while not stop.is_set():
            found = {order_id: reservation(inventory, order_id) for order_id in expected}
            arrived = {order_id: each for order_id, each in found.items() if each is not None}
            if {order_id: each.status for order_id, each in arrived.items()} == expected:
                return arrived
            house.check()
            if time.monotonic() > deadline:
                tails = "\n".join(process.log_tail() for process in house.processes.values())
                raise DemoStopped(f"Not every order has arrived within {ARRIVAL_LIMIT:.0f} s", tails)
            stop.wait(0.05)
    return {}


def write_env(house: House, path: Path) -> None:
    """A file to source in another shell. It holds the passwords of the embedded services: for its owner only."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in house.env.items()))
