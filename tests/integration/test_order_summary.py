"""The summary is right whichever event comes first, whoever else works on the same rows, however large the sums."""

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from domain.values import LARGEST_INTEGER
from infrastructure.postgres import Connection
from projections.order_summary import queries
from projections.order_summary.projection import PROJECTION
from tests.support.messages import cancelled
from tests.support.stored_events import autocommit
from tests.support.summaries import read, with_summary
from tests.support.wait import eventually

PLACED_AT = datetime(2026, 9, 29, 10, 30, tzinfo=UTC)


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_summary(store_dsn)


@pytest.fixture
def db(dsn: str) -> Iterator[Connection]:
    with autocommit(dsn) as connection:
        yield connection


def placed(order_id: str, customer: str = "cus_1", total: int = 100, currency: str = "EUR") -> OrderPlaced:
    return OrderPlaced(
        event_id=f"evt_{order_id}",
        event_type="OrderPlaced",
        schema_version=1,
        occurred_at=PLACED_AT,
        order_id=order_id,
        customer_id=customer,
        total_minor=total,
        currency=currency,
    )


def apply(connection: Connection, *contracts: Contract) -> None:
    with connection.transaction():
        assert PROJECTION.handle_batch(contracts, connection) == {}


def test_events_make_the_same_in_whatever_order_and_company_they_come(db: Connection) -> None:
    for number, (order, together) in enumerate(itertools.product(itertools.permutations(range(3)), (True, False))):
        customer, first, second = f"cus_{number}", f"{number}-1", f"{number}-2"
        events = (placed(first, customer), placed(second, customer, total=20), cancelled(first))
        shuffled = [events[place] for place in order]
        for batch in [shuffled] if together else [[event] for event in shuffled]:
            apply(db, *batch)
        summaries, totals = read(db)
        assert totals[customer, "EUR"] == (2, 120, 1, 100), (order, together)
        assert summaries[first] == (True, customer, "EUR", 100, "changed my mind")
        assert summaries[second] == (False, customer, "EUR", 20, None)


def test_an_order_of_which_only_the_cancellation_is_known_counts_for_nobody(db: Connection) -> None:
    apply(db, cancelled("o-1"))
    assert queries.order(db, "o-1") == queries.OrderState("o-1", "cancelled", None, None, None, None, "changed my mind")
    assert read(db)[1] == {}


def test_what_may_be_asked_of_it(db: Connection) -> None:
    apply(
        db, placed("o-1", total=100), placed("o-2", total=30, currency="JPY"), placed("o-3", total=5), cancelled("o-3")
    )
    assert queries.order(db, "o-1") == queries.OrderState("o-1", "placed", "cus_1", "EUR", 100, PLACED_AT, None)
    assert queries.order(db, "o-404") is None
    assert queries.customer(db, "cus_1") == [
        queries.CustomerTotal("cus_1", "EUR", 1, 100, 1, 5),
        queries.CustomerTotal("cus_1", "JPY", 1, 30, 0, 0),
    ]
    assert queries.customer(db, "cus_404") == []


def test_sums_stay_exact_beyond_any_integer_of_the_database(db: Connection) -> None:
    orders = [placed(f"o-{number}", total=LARGEST_INTEGER) for number in range(1_100)]
    apply(db, *orders)
    (total,) = queries.customer(db, "cus_1")
    assert total.total_minor == 1_100 * LARGEST_INTEGER > 2**63


def test_two_that_get_the_two_events_of_an_order_at_the_same_time_count_it_once(dsn: str, db: Connection) -> None:
    """As behind Kafka, where they come by two topics."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with autocommit(dsn) as first, autocommit(dsn) as second, ThreadPoolExecutor() as threads:
        with first.transaction():
            PROJECTION.handle_batch([placed("o-1")], first)
            other = threads.submit(apply, second, cancelled("o-1"))
            eventually(lambda: db.execute(waiting).fetchone() != (0,), within=30)
        other.result(30)
    assert read(db)[1] == {("cus_1", "EUR"): (1, 100, 1, 100)}


def test_customers_whose_orders_are_everywhere_never_make_workers_wait_in_a_circle(dsn: str, db: Connection) -> None:
    customers = [f"cus_{number}" for number in range(30)]

    def work(worker: int) -> None:
        dice = random.Random(worker)
        with autocommit(dsn) as connection:
            for batch in range(30):
                names = dice.sample(customers, len(customers))
                apply(connection, *(placed(f"o-{worker}-{batch}-{name}", name, total=1) for name in names))

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(work, worker) for worker in range(4)]:
            done.result(60)
    assert read(db)[1] == {(customer, "EUR"): (120, 120, 0, 0) for customer in customers}
