"""Through pgbouncer in transaction mode: what works does so without a trace of trouble, the rest is refused."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import pytest

from domain.orders.application import Orders
from domain.orders.commands import LineItem, PlaceOrder
from infrastructure.event_store import store_env
from infrastructure.hints import HintListener
from infrastructure.lease import acquire
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.pooler import NeedsDirectConnection, behind_a_pooler
from infrastructure.postgres import connect
from tests.support.pgbouncer import POOL, PgBouncer
from tests.support.processes import Programs
from tests.support.stored_events import autocommit
from tests.support.wait import eventually

ORDERS = 1_000
THREADS = 8
LINES = (LineItem(sku="pen", quantity=2, unit_price_minor=345),)
SESSION_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


def open_orders(dsn: str) -> Orders:
    """With more connections than the pooler has."""
    return Orders(env=store_env(dsn, connections=2 * POOL))


def test_a_thousand_orders_are_placed_loaded_and_read_through_a_pool_of_three(
    store_dsn: str, pgbouncer: PgBouncer
) -> None:
    ids = [f"ord_{number}" for number in range(ORDERS)]

    def place(orders: Orders, order_id: str) -> bool:
        command = PlaceOrder(order_id=order_id, customer_id="cus_17", currency="EUR", lines=LINES)
        return orders.place(command).changed

    def load(orders: Orders, order_id: str) -> int:
        order = orders.get(order_id)
        assert order is not None
        return order.total_minor

    # Two applications, for a statement prepared by one is in the way of the other.
    with (
        closing(open_orders(pgbouncer.through(store_dsn))) as one,
        closing(open_orders(pgbouncer.through(store_dsn))) as other,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        placed = list(threads.map(place, [one, other] * (ORDERS // 2), ids))
        loaded = list(threads.map(load, [other, one] * (ORDERS // 2), ids))
        read = [each.originator_id for each in one.recorder.select_notifications(1, 2 * ORDERS)]
    assert placed == [True] * ORDERS
    assert loaded == [690] * ORDERS
    assert sorted(map(str, read)) == sorted(ids)
    assert "prepared statement" not in pgbouncer.log()


def test_a_hint_sent_through_the_pooler_is_heard_on_a_direct_connection(store_dsn: str, pgbouncer: PgBouncer) -> None:
    heard = Event()
    listener = HintListener(store_dsn, heard.set)
    listener.start()
    try:
        assert heard.wait(10.0), "it calls once when it is connected"
        heard.clear()
        with closing(open_orders(pgbouncer.through(store_dsn))) as orders:
            orders.place(PlaceOrder(order_id="ord_1", customer_id="cus_17", currency="EUR", lines=LINES))
            assert heard.wait(10.0)
    finally:
        listener.stop()


def test_a_lease_is_taken_over_within_its_time_whatever_became_of_its_session(
    store_dsn: str, pgbouncer: PgBouncer
) -> None:
    with (
        connect(pgbouncer.through(store_dsn), application_name="test") as first,
        connect(pgbouncer.through(store_dsn), application_name="test") as second,
    ):
        assert acquire(first, "domain.orders", 1.0)
        first.close()
        assert acquire(second, "domain.orders", 1.0) is None
        taken = eventually(lambda: acquire(second, "domain.orders", 1.0), within=5.0)
        assert taken is not None
        assert taken[0].epoch == 2


@pytest.mark.parametrize(
    ("command", "who"),
    [(("relay", "domain.orders"), "a relay"), (("project", "projections.order_summary"), "a projection that is fed")],
    ids=["relay", "projection"],
)
def test_who_needs_a_direct_connection_says_so_at_its_start(
    store_dsn: str, pgbouncer: PgBouncer, programs: Programs, command: tuple[str, ...], who: str
) -> None:
    program = programs.counterfoil(*command, env={"COUNTERFOIL_STORE_DSN": pgbouncer.through(store_dsn)})
    program.wait_for_line(f"connection pooler.*{who}.*own host and port", within=60)
    assert program.wait(10.0) == 1
    assert "Traceback" not in program.output()


def test_a_migration_through_the_pooler_is_refused_and_leaves_no_lock(empty_dsn: str, pgbouncer: PgBouncer) -> None:
    with pytest.raises(NeedsDirectConnection, match="migration"):
        migrate(pgbouncer.through(empty_dsn), STORE_MIGRATIONS)
    with autocommit(empty_dsn) as session:
        assert session.execute(SESSION_LOCKS).fetchone() == (0,)
        assert session.execute("SELECT to_regclass('stored_events')").fetchone() == (None,)
    assert migrate(empty_dsn, STORE_MIGRATIONS)


def test_a_direct_connection_is_not_taken_for_a_pooler(store_dsn: str, pgbouncer: PgBouncer) -> None:
    with autocommit(store_dsn) as direct, autocommit(pgbouncer.through(store_dsn)) as pooled:
        assert (behind_a_pooler(direct), behind_a_pooler(pooled)) == (False, True)
        assert (direct.prepare_threshold, pooled.prepare_threshold) == (5, None)
