"""The inventory on topics of the test, which also writes down each event that it applies: twice shows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.migrate import Migrations, migrate
from projections.base import Answer
from projections.inventory import MIGRATIONS
from projections.inventory.projection import Inventory
from projections.rebuilding.target import Target
from tests.support import counting
from tests.support.inventory import Rows, everything
from tests.support.projecting import settings

_PLACES: Migrations = counting.MIGRATIONS[-1]


class CountingInventory(Inventory):
    def __init__(self, consumer_name: str, *topics: str) -> None:
        self.consumer_name, self._topics = consumer_name, topics

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._topics))

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Answer]:
        answers: Mapping[str, Answer] = super().handle_batch(contracts, tx)
        if not answers:
            tx.cursor().executemany(
                "INSERT INTO places (event_id) VALUES (%s)", [(each.event_id,) for each in contracts]
            )
        return answers


def counting_inventory(
    projection: CountingInventory, inventory_dsn: str, bootstrap: str, store_dsn: str | None = None
) -> Target:
    """With its tables; it may be rebuilt from its topics, and from the store if there is one."""
    migrate(inventory_dsn, [_PLACES])
    target = Target.of("projections.inventory", store_dsn, inventory_dsn, settings(bootstrap))
    loaded = replace(target.loaded, projection=projection, migrations=[*MIGRATIONS, _PLACES])
    return replace(target, loaded=loaded)


def folded(contracts: Sequence[Contract], on_hand: Mapping[str, int]) -> Rows:
    """What the inventory should hold by these events, each of which counts once, when there is enough of everything."""
    lines = {
        (each.order_id, line.sku): line.quantity
        for each in contracts
        if isinstance(each, OrderPlaced)
        for line in each.lines or ()
    }
    cancelled = {each.order_id for each in contracts if isinstance(each, OrderCancelled)}
    kept = {(order, sku): quantity for (order, sku), quantity in lines.items() if order not in cancelled}
    reserved = {sku: sum(quantity for (_, of), quantity in kept.items() if of == sku) for sku in on_hand}
    statuses = {each.key: "cancelled" if each.key in cancelled else "reserved" for each in contracts}
    return {
        "stock": sorted((sku, pieces, reserved[sku]) for sku, pieces in on_hand.items()),
        "reservations": sorted(statuses.items()),
        "reservation_lines": sorted((order, sku, quantity, 0) for (order, sku), quantity in kept.items()),
    }


def held(connection: Connection) -> tuple[Rows, list[str]]:
    """All rows of the inventory, and the id of each event for each time that it was applied."""
    places = connection.execute("SELECT event_id FROM places ORDER BY event_id").fetchall()
    return everything(connection), [event_id for (event_id,) in places]


def once(contracts: Sequence[Contract]) -> list[str]:
    return sorted({each.event_id for each in contracts})
