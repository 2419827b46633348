"""A customer as a process: places orders, some twice, and cancels some. `python -m tests.chaos.writer SEED NAME`.

Order n of a name is the same in every life of the process; it goes on where the store says that it was.
"""

import os
import random
import sys
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event

import psycopg

from domain.errors import CounterfoilError
from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure import logs
from infrastructure.event_store import store_env
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import stop_on_signals

SKUS = [f"sku-{number}" for number in range(12)]
PAUSE = 0.005
CLOSED = Path(os.environ.get("CHAOS_CLOSED", "closed"))
"""Once this file is there, nothing more is written."""

PLACED = "SELECT count(DISTINCT originator_id) FROM stored_events WHERE originator_id LIKE %s"


def order(seed: str, name: str, number: int) -> PlaceOrder:
    dice = random.Random(f"{seed} {name} {number}")
    skus = dice.sample(SKUS, dice.randint(1, 3))
    lines = tuple(LineItem(sku=sku, quantity=dice.randint(1, 5), unit_price_minor=100) for sku in skus)
    return PlaceOrder(order_id=f"{name}-{number:06}", customer_id="cus_1", currency="EUR", lines=lines)


def serve(orders: Orders, seed: str, name: str, number: int) -> None:
    command = order(seed, name, number)
    for _ in range(2 if number % 10 == 0 else 1):
        orders.place(command)
    if number % 7 == 3:
        orders.cancel(CancelOrder(order_id=command.order_id, reason="changed my mind"))


def patiently(orders: Orders, seed: str, name: str, number: int, stop: Event) -> None:
    """Until the order is stored: after an error the same is asked again."""
    while not stop.is_set():
        try:
            serve(orders, seed, name, number)
        except (CounterfoilError, psycopg.Error, OSError):
            stop.wait(0.3)
        else:
            return


def main(seed: str, name: str) -> None:
    stop, dsn = stop_on_signals(), Settings.load().required_store_dsn()
    logs.configure("text", "WARNING")
    with closing(connect(dsn, application_name="chaos writer")) as store:
        (placed,) = store.execute(PLACED, (f"{name}-%",)).fetchone() or (0,)
    with closing(Orders(env=store_env(dsn))) as orders:
        for number in count(max(0, placed - 1)):  # the last one may not have been cancelled yet
            if CLOSED.exists():
                stop.wait()
            if stop.wait(PAUSE):
                return
            patiently(orders, seed, name, number, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
