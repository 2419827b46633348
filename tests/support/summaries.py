"""The order summary in a database: what it should hold by the stored events, and what it holds."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from domain.event_mapper import EventMapper
from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.order import Order
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.migrate import migrate
from infrastructure.outbox import load_outbox
from infrastructure.postgres import Connection, connect
from projections.order_summary import MIGRATIONS
from projections.order_summary.projection import PROJECTION

OUTBOXES = [load_outbox("domain.orders")]
NAME = PROJECTION.consumer_name

Summary = tuple[dict[str, tuple[object, ...]], dict[tuple[str, str], tuple[int, ...]]]
"""Orders by id: cancelled, customer, currency, total, reason. Totals by customer and currency: placed, of how much,
cancelled, of how much."""


def with_summary(store_dsn: str) -> str:
    """The store's database, with the tables of the summary in it."""
    migrate(store_dsn, MIGRATIONS)
    return store_dsn


def command(order_id: str, customer: str = "cus_1", currency: str = "EUR", price: int = 345) -> PlaceOrder:
    line = LineItem(sku="pen", quantity=1, unit_price_minor=price)
    return PlaceOrder(order_id=order_id, customer_id=customer, currency=currency, lines=(line,))


@contextmanager
def orders_in(dsn: str) -> Iterator[Orders]:
    with closing(Orders(env=store_env(dsn))) as orders:
        yield orders


def place_and_cancel(dsn: str, numbers: Sequence[int]) -> int:
    """Orders of a few customers in two currencies, every third cancelled. The last position."""
    position = 0
    with orders_in(dsn) as orders:
        for number in numbers:
            placed = command(f"ord_{number}", f"cus_{number % 5}", "EUR" if number % 2 else "JPY", price=number + 1)
            position = orders.place(placed).position
            if number % 3 == 0:
                position = orders.cancel(CancelOrder(order_id=placed.order_id, reason="changed my mind")).position
    return position


def fold(store_dsn: str) -> Summary:
    """What the stored events say, without contracts, mapping or SQL."""
    mapper, summaries, totals = EventMapper(), {}, {}
    with connect(store_dsn, application_name="test") as store:
        for recorded in EventReader(store).read(0, 1_000_000).events:
            match mapper.to_domain_event(recorded):
                case Order.Placed() as event:
                    total = sum(line.quantity * line.unit_price_minor for line in event.lines)
                    summaries[event.originator_id] = (False, event.customer_id, event.currency, total, None)
                case Order.Cancelled() as event:
                    _, customer, currency, total, _ = summaries[event.originator_id]
                    summaries[event.originator_id] = (True, customer, currency, total, event.reason)
    for cancelled, customer, currency, total, _ in summaries.values():
        count = totals.setdefault((customer, currency), Counter())
        count.update(placed=1, placed_minor=total, cancelled=int(cancelled), cancelled_minor=total * cancelled)
    order = ("placed", "placed_minor", "cancelled", "cancelled_minor")
    return summaries, {key: tuple(count[name] for name in order) for key, count in totals.items()}


def read(connection: Connection) -> Summary:
    summaries = connection.execute(
        "SELECT order_id, cancelled, customer_id, currency, total_minor, cancelled_because FROM order_summaries"
    )
    totals = connection.execute(
        "SELECT customer_id, currency, placed, placed_minor, cancelled, cancelled_minor FROM customer_totals"
    )
    return (
        {order_id: tuple(rest) for order_id, *rest in summaries.fetchall()},
        {(customer, currency): tuple(map(int, counts)) for customer, currency, *counts in totals.fetchall()},
    )
