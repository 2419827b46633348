"""Customers: several writers that place orders at the same time, send some twice, and cancel some."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Event

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure.event_store import store_env
from infrastructure.postgres import connect
from projections.inventory.queries import set_stock

WRITERS = 4
SKUS = [f"sku-{number:02}" for number in range(20)]


class Shop:
    """What its customers do is the same in every run. `events`: how many events that makes."""

    def __init__(self, orders: int) -> None:
        self._orders = orders
        self.events = orders + sum(map(_is_cancelled, range(orders)))

    def fill_stock(self, inventory_dsn: str) -> None:
        """A bit less than what will be asked for, so that some orders are rejected."""
        with closing(connect(inventory_dsn, application_name="counterfoil demo")) as inventory:
            for sku in SKUS:
                set_stock(inventory, sku, 1 + self._orders // 4)

    @contextmanager
    def open(self, store_dsn: str, stop: Event) -> Iterator["ThreadPoolExecutor"]:
        """The writers are at work meanwhile; the end of the block waits for them, or after an error sends them home."""
        closed = Event()
        with closing(Orders(env=store_env(store_dsn))) as orders, ThreadPoolExecutor(WRITERS) as writers:
            shifts = [writers.submit(self._write, orders, writer, stop, closed) for writer in range(WRITERS)]
            try:
                yield writers
                for shift in shifts:
                    shift.result()
            finally:
                closed.set()

    def _write(self, orders: Orders, writer: int, stop: Event, closed: Event) -> None:
        for number in range(writer, self._orders, WRITERS):
            if stop.is_set() or closed.is_set():
                return
            order = _order(number)
            orders.place(order)
            if number % 50 == 0:
                orders.place(order)  # sent twice: the same order
            if _is_cancelled(number):
                orders.cancel(CancelOrder(order_id=order.order_id, reason="changed my mind"))


def _is_cancelled(number: int) -> bool:
    return number % 10 == 3


def _order(number: int) -> PlaceOrder:
    dice = random.Random(number)  # noqa: S311
    lines = tuple(
        LineItem(sku=sku, quantity=dice.randint(1, 5), unit_price_minor=dice.randint(100, 9_999))
        for sku in dice.sample(SKUS, dice.randint(1, 3))
    )
    return PlaceOrder(order_id=f"demo_{number}", customer_id=f"cus_{number % 97}", currency="EUR", lines=lines)
