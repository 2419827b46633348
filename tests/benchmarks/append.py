"""Appending single events through Application.save, against the library's own PostgreSQL recorder."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
from eventsourcing.application import Application as LibraryApplication
from eventsourcing.domain import Aggregate as LibraryAggregate

from domain.orders.application import Orders
from domain.orders.commands import LineItem, PlaceOrder
from domain.orders.order import Order
from infrastructure.event_store import store_env
from tests.benchmarks.harness import Comparison, Contender
from tests.benchmarks.pgbench import inserts_per_second, pgbench_program

SAVES = 2_000
LINES = (LineItem(sku="pen", quantity=2, unit_price_minor=345),)


class LibraryOrder(LibraryAggregate):
    """The same facts as an Order, kept the library's way."""

    def __init__(self, customer_id: str, currency: str, lines: list[dict[str, Any]]) -> None:
        self.customer_id = customer_id
        self.currency = currency
        self.lines = lines


class LibraryOrders(LibraryApplication[Any]):
    pass


def our_order() -> Order:
    return Order.place(PlaceOrder(order_id=uuid4().hex, customer_id="cus_17", currency="EUR", lines=LINES))


def library_order() -> LibraryOrder:
    return LibraryOrder("cus_17", "EUR", [{"sku": "pen", "quantity": 2, "unit_price_minor": 345}])


def library_env(dsn: str, connections: int = 16) -> dict[str, str]:
    info = psycopg.conninfo.conninfo_to_dict(dsn)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(info["dbname"]),
        "POSTGRES_HOST": str(info["host"]),
        "POSTGRES_PORT": str(info["port"]),
        "POSTGRES_USER": str(info["user"]),
        "POSTGRES_PASSWORD": str(info.get("password") or ""),
        "POSTGRES_POOL_SIZE": str(connections),
    }


def saves_per_second(application: Any, make: Callable[[], Any], threads: int, saves: int = SAVES) -> float:
    """Aggregates are made beforehand, so that only the saving is timed."""
    batches = [[make() for _ in range(saves // threads)] for _ in range(threads)]

    def save_all(batch: list[Any]) -> None:
        for aggregate in batch:
            application.save(aggregate)

    workers = [threading.Thread(target=save_all, args=(batch,)) for batch in batches]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * (saves // threads) / (time.perf_counter() - started)


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Orders(env=store_env(store_dsn))))
        library = stack.enter_context(closing(LibraryOrders(env=library_env(library_dsn))))
        for threads, goal in ((1, ""), (4, ">= 3"), (16, ">= 5")):
            yield Comparison(
                f"Append, {threads} threads",
                "saves/s",
                (
                    Contender("library", lambda n=threads: saves_per_second(library, library_order, n, SAVES // 4)),
                    Contender("counterfoil", lambda n=threads: saves_per_second(ours, our_order, n)),
                ),
                goal,
            )
        yield Comparison(
            "Append, 16 processes of one writer",
            "saves/s",
            (
                Contender("library", lambda: processes_per_second("library", library_dsn)),
                Contender("counterfoil", lambda: processes_per_second("counterfoil", store_dsn)),
            ),
            ">= 2.5",
            rounds=3,
        )
        yield from shares_of_pgbench(ours, store_dsn)


def shares_of_pgbench(ours: Orders, dsn: str) -> Iterator[Comparison]:
    """The ratio is the share of what the server does when nothing but the insert is asked of it."""
    program = pgbench_program()
    if program is None:
        print("\nNo pgbench here: the share of its plain insert is not shown.")
        return
    event = ours.mapper.to_stored_event(our_order().collect_events()[0])
    for clients in (1, 4, 16):
        yield Comparison(
            f"Append, {clients} threads, beside pgbench's plain insert with {clients} clients",
            "saves/s",
            (
                Contender("pgbench", partial(inserts_per_second, program, dsn, clients, SAVES, event)),
                Contender("counterfoil", partial(saves_per_second, ours, our_order, clients)),
            ),
        )


def processes_per_second(which: str, dsn: str, processes: int = 16, saves: int = 200) -> float:
    """Each process gets ready, says so, waits for the start, and saves."""
    command = [sys.executable, "-m", "tests.benchmarks.append", which, str(saves)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdin and worker.stdout
        worker.stdin.write(dsn + "\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "ready\n"
    started = time.perf_counter()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == "done\n"
    elapsed = time.perf_counter() - started
    for worker in workers:
        worker.communicate()
    return processes * saves / elapsed


def one_writer(which: str, saves: int) -> None:
    dsn = sys.stdin.readline().strip()
    application: Any
    make: Callable[[], Any]
    if which == "counterfoil":
        application, make = Orders(env=store_env(dsn)), our_order
    else:
        application, make = LibraryOrders(env=library_env(dsn, connections=1)), library_order
    application.save(make())
    aggregates = [make() for _ in range(saves)]
    print("ready", flush=True)
    sys.stdin.readline()
    for aggregate in aggregates:
        application.save(aggregate)
    print("done", flush=True)
    application.close()


if __name__ == "__main__":
    one_writer(sys.argv[1], int(sys.argv[2]))
