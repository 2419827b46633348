"""Keeps a row per order and a row per customer and currency, whichever of an order's two events comes first."""

from collections.abc import Mapping, Sequence

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.base import BatchProjection, Quarantine

# An order is placed once and cancelled at most once. So a row that changes here has changed by just what is told,
# and what that adds to its customer's numbers follows from the row as it is now. An order whose other event another
# consumer is applying at this moment is waited for, and then seen as that one left it.
#
# One statement for both kinds of events, which locks orders first and customers second, each by name: so no two
# consumers or shards ever wait for each other in a circle, though the row of a customer is shared by all of them.
APPLY = """
    WITH told AS (
        SELECT * FROM unnest(
            %(order_ids)b::text[], %(customer_ids)b::text[], %(currencies)b::text[],
            %(totals)b::bigint[], %(placed_at)b::timestamptz[], %(reasons)b::text[]
        ) AS told (order_id, customer_id, currency, total_minor, placed_at, cancelled_because)
    ), changed AS (
        INSERT INTO order_summaries AS known
               (order_id, customer_id, currency, total_minor, placed_at, cancelled, cancelled_because)
        SELECT order_id, customer_id, currency, total_minor, placed_at, cancelled_because IS NOT NULL, cancelled_because
        FROM told ORDER BY order_id COLLATE "C"
        ON CONFLICT (order_id) DO UPDATE
            SET customer_id = coalesce(known.customer_id, excluded.customer_id),
                currency = coalesce(known.currency, excluded.currency),
                total_minor = coalesce(known.total_minor, excluded.total_minor),
                placed_at = coalesce(known.placed_at, excluded.placed_at),
                cancelled = known.cancelled OR excluded.cancelled,
                cancelled_because = coalesce(known.cancelled_because, excluded.cancelled_because)
            WHERE (known.customer_id IS NULL AND excluded.customer_id IS NOT NULL)
               OR (excluded.cancelled AND NOT known.cancelled)
        RETURNING order_id, customer_id, currency, total_minor, cancelled
    ), added AS (
        SELECT changed.customer_id, changed.currency, changed.total_minor, changed.cancelled,
               told.customer_id IS NOT NULL AS placed
        FROM changed JOIN told USING (order_id) WHERE changed.customer_id IS NOT NULL
    )
    INSERT INTO customer_totals AS known
           (customer_id, currency, placed, placed_minor, cancelled, cancelled_minor)
    SELECT customer_id, currency,
           count(*) FILTER (WHERE placed), coalesce(sum(total_minor) FILTER (WHERE placed), 0),
           count(*) FILTER (WHERE cancelled), coalesce(sum(total_minor) FILTER (WHERE cancelled), 0)
    FROM added GROUP BY customer_id, currency ORDER BY customer_id COLLATE "C", currency COLLATE "C"
    ON CONFLICT (customer_id, currency) DO UPDATE
        SET placed = known.placed + excluded.placed,
            placed_minor = known.placed_minor + excluded.placed_minor,
            cancelled = known.cancelled + excluded.cancelled,
            cancelled_minor = known.cancelled_minor + excluded.cancelled_minor
"""


class OrderSummary(BatchProjection):
    """A cancellation that comes before its order waits in a row without a customer; totals know it with the order."""

    consumer_name = "order-summary"
    contracts = (OrderPlaced, OrderCancelled)
    rebuilt_in_parallel = True

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        placed: dict[str, OrderPlaced] = {}
        reasons: dict[str, str] = {}
        for contract in contracts:
            match contract:
                case OrderPlaced():
                    placed.setdefault(contract.order_id, contract)
                case OrderCancelled():
                    reasons.setdefault(contract.order_id, contract.reason)
        tx.execute(APPLY, _columns(placed, reasons), prepare=True)
        return {}


def _columns(placed: Mapping[str, OrderPlaced], reasons: Mapping[str, str]) -> dict[str, list[object]]:
    """What is told of each order, a list per column; None where its placement, or its cancellation, is not."""
    order_ids = list(placed.keys() | reasons.keys())
    orders = [placed.get(order_id) for order_id in order_ids]
    return {
        "order_ids": list[object](order_ids),
        "customer_ids": [order and order.customer_id for order in orders],
        "currencies": [order and order.currency for order in orders],
        "totals": [order and order.total_minor for order in orders],
        "placed_at": [order and order.occurred_at for order in orders],
        "reasons": [reasons.get(order_id) for order_id in order_ids],
    }


PROJECTION = OrderSummary()
