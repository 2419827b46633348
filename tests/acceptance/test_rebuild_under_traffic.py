"""The whole of a rebuild: orders go on coming, readers go on reading, and the process is killed twice on the way."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

import pytest

from domain.orders.order import Order
from infrastructure.postgres import Connection, connect
from projections import positions
from projections.rebuilding import state
from tests.support.processes import Program, Programs
from tests.support.summaries import NAME, command, fold, orders_in, read, with_summary
from tests.support.wait import eventually

HISTORY = 6_000
MODULE = "projections.order_summary"

# One statement, so one snapshot: a row per order, and each of them counted once for its customer.
READ = "SELECT (SELECT count(*) FROM order_summaries), (SELECT sum(placed)::bigint FROM customer_totals)"


@dataclass
class Traffic:
    """50 orders a second, and a look at the read model every 10 ms."""

    dsn: str
    last: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)

    def place(self, stop: Event) -> None:
        with orders_in(self.dsn) as orders:
            number = 0
            while not stop.wait(0.02):
                self.last = orders.place(command(f"live_{number}", f"cus_{number % 7}")).position
                number += 1

    def read(self, stop: Event) -> None:
        with connect(self.dsn, application_name="test reader") as connection:
            while not stop.wait(0.01):
                self.seen += connection.execute(READ).fetchall()


@contextmanager
def under_traffic(dsn: str) -> Iterator[Traffic]:
    traffic, stop = Traffic(dsn), Event()
    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(each, stop) for each in (traffic.place, traffic.read)]
        try:
            yield traffic
        finally:
            stop.set()
        for each in working:
            each.result(30)


def positions_of(connection: Connection) -> list[int]:
    return list(state.progress(connection, NAME).positions) if state.find(connection, NAME) else []


@pytest.mark.timeout(300)
def test_a_rebuild_that_is_killed_twice_under_live_traffic_ends_as_the_fold_of_all_events(
    programs: Programs, store_dsn: str
) -> None:
    dsn = with_summary(store_dsn)
    env = {"COUNTERFOIL_STORE_DSN": dsn, "COUNTERFOIL_LOG_LEVEL": "INFO"}
    with orders_in(dsn) as orders:
        for start in range(0, HISTORY, 500):
            placed = (Order.place(command(f"old_{n}", f"cus_{n % 7}")) for n in range(start, start + 500))
            orders.save(*placed)
    programs.counterfoil("project", MODULE, env=env)

    def rebuild() -> Program:
        return programs.counterfoil("rebuild", MODULE, "--workers", "2", env=env)

    with connect(dsn, application_name="test") as connection:
        eventually(lambda: _applied(connection) >= HISTORY, within=60)
        with under_traffic(dsn) as traffic:
            begun = rebuild()
            eventually(lambda: positions_of(connection), within=60, every=0.005)
            begun.kill()
            filling = rebuild()
            eventually(lambda: max(positions_of(connection)) > 0, within=60, every=0.005)
            filling.kill()  # and not its workers: they end by themselves, or are refused
            finished = rebuild()
            assert finished.wait(120) == 0, finished.log_tail()
            swapped_at = len(traffic.seen)
            eventually(lambda: len(traffic.seen) > swapped_at + 20, within=30)
        eventually(lambda: _applied(connection) >= traffic.last, within=60)
        assert read(connection) == fold(dsn)
        rebuilt = state.read(connection, NAME)
        assert rebuilt is not None
        assert rebuilt.state is state.State.SWAPPED
    assert all(orders == counted for orders, counted in traffic.seen)
    numbers = [orders for orders, _ in traffic.seen]
    assert numbers == sorted(numbers)
    assert numbers[0] >= HISTORY


def _applied(connection: Connection) -> int:
    return min((place.position for place in positions.read(connection, NAME)), default=0)
