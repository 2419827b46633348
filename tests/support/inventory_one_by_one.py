"""What the inventory's batches have to come to: the same projection with each event applied by itself, in SQL alone."""

from collections.abc import Sequence

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.base import Projection, Quarantine
from projections.inventory.projection import LOCK_ORDERS

LOCK_STOCK = """
    SELECT FROM stock
    WHERE sku IN (
        SELECT unnest(%(ordered)s::text[])
        UNION SELECT sku FROM reservation_lines WHERE order_id = ANY (%(cancelled)s::text[])
    )
    ORDER BY sku FOR NO KEY UPDATE
"""

RESERVE = """
    WITH wanted AS (
        SELECT sku, sum(quantity)::bigint AS quantity
        FROM unnest(%(skus)s::text[], %(quantities)s::bigint[]) AS line (sku, quantity) GROUP BY sku
    ), lines AS (
        SELECT sku, quantity, greatest(0, quantity - coalesce(on_hand - reserved, 0)) AS missing
        FROM wanted LEFT JOIN stock USING (sku)
    ), decided AS (
        UPDATE reservations
        SET status = CASE WHEN (SELECT sum(missing) FROM lines) = 0 THEN 'reserved' ELSE 'rejected' END
        WHERE order_id = %(order_id)s AND status = 'undecided'
        RETURNING order_id, status
    ), recorded AS (
        INSERT INTO reservation_lines (order_id, sku, quantity, missing)
        SELECT order_id, sku, quantity, missing FROM decided CROSS JOIN lines
    )
    UPDATE stock SET reserved = reserved + lines.quantity
    FROM lines CROSS JOIN decided WHERE stock.sku = lines.sku AND decided.status = 'reserved'
"""

CANCEL = """
    WITH known AS (
        SELECT order_id, status FROM reservations WHERE order_id = %(order_id)s
    ), cancelled AS (
        UPDATE reservations SET status = 'cancelled' WHERE order_id = %(order_id)s AND status <> 'cancelled'
    ), freed AS (
        DELETE FROM reservation_lines USING known
        WHERE reservation_lines.order_id = known.order_id
        RETURNING sku, quantity, known.status
    )
    UPDATE stock SET reserved = reserved - freed.quantity
    FROM freed WHERE stock.sku = freed.sku AND freed.status = 'reserved'
"""


class InventoryOneByOne(Projection):
    consumer_name = "inventory-one-by-one"
    contracts = (OrderPlaced, OrderCancelled)

    def prepare(self, contracts: Sequence[Contract], tx: Connection) -> None:
        """Orders first, then stock, each by name: so no two consumers ever wait for each other in a circle."""
        placed = [contract for contract in contracts if isinstance(contract, OrderPlaced) and contract.lines]
        cancelled = [contract.order_id for contract in contracts if isinstance(contract, OrderCancelled)]
        ordered = [line.sku for contract in placed for line in contract.lines or ()]
        tx.execute(LOCK_ORDERS, ([contract.order_id for contract in placed] + cancelled,))
        tx.execute(LOCK_STOCK, {"ordered": ordered, "cancelled": cancelled})

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        match contract:
            case OrderPlaced(lines=None):
                return Quarantine("lines: an order without lines cannot be reserved")
            case OrderPlaced(lines=lines):
                skus, quantities = [line.sku for line in lines or ()], [line.quantity for line in lines or ()]
                tx.execute(RESERVE, {"order_id": contract.key, "skus": skus, "quantities": quantities})
            case OrderCancelled():
                tx.execute(CANCEL, {"order_id": contract.order_id})
        return None
