"""Rebuilds in the test's own process, with orders in a store and an inventory that has applied them or not."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from threading import Event

from domain.contracts import Contract
from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure.event_store import store_env
from infrastructure.postgres import Connection
from projections.base import Projection
from projections.batch import apply_batch
from projections.inventory.projection import PROJECTION
from projections.rebuild import Options, Outcome, rebuild
from projections.rebuilding.stored import StoreSource
from projections.rebuilding.target import Target
from tests.support.messages import readable

NEVER = Event()
AT_ONCE = Options(patience=5.0)
SKUS = ("pen", "ink", "pad")


def place(store_dsn: str, numbers: Sequence[int], cancel_every: int = 7) -> None:
    """Orders of three skus, some of them cancelled."""
    with closing(Orders(env=store_env(store_dsn))) as orders:
        for number in numbers:
            line = LineItem(sku=SKUS[number % 3], quantity=1 + number % 4, unit_price_minor=345)
            order = PlaceOrder(order_id=f"ord_{number}", customer_id="cus_1", currency="EUR", lines=(line,))
            orders.place(order)
            if number % cancel_every == 0:
                orders.cancel(CancelOrder(order_id=order.order_id, reason="changed my mind"))


def inventory_of(store_dsn: str, inventory_dsn: str, projection: Projection = PROJECTION) -> Target:
    return with_projection(Target.of("projections.inventory", store_dsn, inventory_dsn), projection)


def with_projection(target: Target, projection: Projection) -> Target:
    """The same one, with other code."""
    return replace(target, loaded=replace(target.loaded, projection=projection))


def told(target: Target) -> list[Contract]:
    """All that the store tells the projection, in its order."""
    with target.connect_store() as store:
        events = StoreSource(target, store).visible(0, 1_000_000)
        return [contract for each in events for contract in each.contracts]


def apply_live(target: Target, connection: Connection, contracts: Sequence[Contract]) -> int:
    """As the live runner would when they come by Kafka. How many of them were new to it."""
    batch = [readable(contract) for contract in contracts]
    return apply_batch(batch, target.projection, connection).applied if batch else 0


def rebuilt(target: Target, **options: object) -> Outcome:
    """Without waiting for a live runner: there is none."""
    return rebuild(target, NEVER, replace(AT_ONCE, **{"patience": 0.5, **options}))  # type: ignore[arg-type]


def schemas(connection: Connection) -> set[str]:
    """Of rebuilds."""
    rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'rebuild%'")
    return {name for (name,) in rows}
