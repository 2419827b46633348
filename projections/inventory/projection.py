"""Reserves stock for placed orders, all lines of an order or none, and releases it for cancelled ones.

The two events of an order come by two topics, in any order, perhaps to two consumers at the same time.
Both ways end with the same rows: a cancelled reservation without lines, and nothing reserved.

A batch of events costs a few statements: lock and read the rows, decide in their order (decisions.py), write.
"""

from collections.abc import Iterable, Mapping, Sequence

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.base import BatchProjection, Quarantine
from projections.inventory.decisions import CANCELLED, Decisions, Line

# Arrays travel in binary (%b): as text, each element would be looked at for what needs quoting.

# One row per order is there after this, ours until the transaction ends, also when another consumer is
# just creating it. A row that was there is locked without being changed: a conflicting row is locked
# even where the condition is false.
LOCK_ORDERS = """
    INSERT INTO reservations (order_id, status)
    SELECT DISTINCT order_id COLLATE "C" AS order_id, 'undecided' FROM unnest(%b::text[]) AS named (order_id)
    ORDER BY order_id
    ON CONFLICT (order_id) DO UPDATE SET status = reservations.status WHERE false
"""
STATUSES = "SELECT order_id, status FROM reservations WHERE order_id = ANY (%b::text[])"
LINES = "SELECT order_id, sku, quantity, missing FROM reservation_lines WHERE order_id = ANY (%b::text[])"
LOCK_STOCK = """
    SELECT sku, on_hand - reserved FROM stock WHERE sku = ANY (%b::text[]) ORDER BY sku FOR NO KEY UPDATE
"""
DECIDE = """
    UPDATE reservations SET status = decided.status
    FROM unnest(%b::text[], %b::text[]) AS decided (order_id, status)
    WHERE reservations.order_id = decided.order_id
"""
FORGET_LINES = "DELETE FROM reservation_lines WHERE order_id = ANY (%b::text[])"
KEEP_LINES = """
    INSERT INTO reservation_lines (order_id, sku, quantity, missing)
    SELECT * FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[])
"""
RESERVE = """
    UPDATE stock SET reserved = reserved + more.pieces
    FROM unnest(%b::text[], %b::bigint[]) AS more (sku, pieces)
    WHERE stock.sku = more.sku
"""


class Inventory(BatchProjection):
    """A sku that stock does not know counts as none on hand. Too little stock is an outcome: `rejected`."""

    consumer_name = "inventory-reservation"
    contracts = (OrderPlaced, OrderCancelled)
    carried: Mapping[str, Sequence[str]] = {"stock": ("on_hand",)}
    agreeing: Mapping[str, Sequence[str]] | None = {
        # A rebuild decides with today's stock and in the order of the store. What it would decide otherwise than was
        # decided is for a person to see: somebody may have packed that order. All else follows from this.
        "reservations": ("status",),
        "reservation_lines": ("quantity",),
        "stock": ("on_hand",),
    }

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        refused = {
            contract.event_id: Quarantine("lines: an order without lines cannot be reserved")
            for contract in contracts
            if isinstance(contract, OrderPlaced) and contract.lines is None
        }
        if refused:
            return refused
        decisions, known = _read_and_lock(contracts, tx)
        for contract in contracts:
            match contract:
                case OrderPlaced():
                    decisions.place(contract.order_id, _asked_for(contract))
                case OrderCancelled():
                    decisions.cancel(contract.order_id)
        _write(decisions, known, tx)
        return {}


def _read_and_lock(contracts: Sequence[Contract], tx: Connection) -> tuple[Decisions, set[str]]:
    """What is there, and which orders have lines.

    Orders are locked first, then stock, each by name: so no two consumers wait for each other in a circle.
    Only with the orders locked are the lines of those to cancel known for certain.
    """
    orders = [contract.key for contract in contracts]
    tx.execute(LOCK_ORDERS, (orders,))
    statuses: dict[str, str] = dict(tx.execute(STATUSES, (orders,)).fetchall())
    to_cancel = [contract.order_id for contract in contracts if isinstance(contract, OrderCancelled)]
    lines: dict[str, tuple[Line, ...]] = {}
    if to_cancel:
        for order_id, *line in tx.execute(LINES, (to_cancel,)):
            lines[order_id] = (*lines.get(order_id, ()), Line(*line))
    skus = {line.sku for known in lines.values() for line in known}
    skus.update(sku for contract in contracts if isinstance(contract, OrderPlaced) for sku, _ in _asked_for(contract))
    available: dict[str, int] = dict(tx.execute(LOCK_STOCK, (list(skus),)).fetchall())
    return Decisions(statuses, available, lines), set(lines)


def _write(decisions: Decisions, known: set[str], tx: Connection) -> None:
    """known: orders whose lines are there already."""
    statuses, lines = decisions.statuses, decisions.lines
    if not decisions.decided:
        return
    decided = sorted(decisions.decided)
    tx.execute(DECIDE, (decided, [statuses[order_id] for order_id in decided]))
    if gone := [order_id for order_id in decided if order_id in known and statuses[order_id] == CANCELLED]:
        tx.execute(FORGET_LINES, (gone,))
    new = [(order_id, *line) for order_id in decided for line in lines.get(order_id, ())]
    if new:
        tx.execute(KEEP_LINES, [list(column) for column in zip(*new, strict=True)])
    if reserved := {sku: pieces for sku, pieces in decisions.reserved.items() if pieces}:
        tx.execute(RESERVE, (list(reserved), list(reserved.values())))


def _asked_for(order: OrderPlaced) -> Iterable[tuple[str, int]]:
    return ((line.sku, line.quantity) for line in order.lines or ())


PROJECTION = Inventory()
