"""What one may ask of the summary."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection


@dataclass(frozen=True)
class OrderState:
    """status: `placed` or `cancelled`. total_minor: in minor units of the currency.

    The fields that the placement tells are None where only the cancellation has been heard of, as may happen
    behind Kafka, never behind the store.
    """

    order_id: str
    status: str
    customer_id: str | None
    currency: str | None
    total_minor: int | None
    placed_at: datetime | None
    cancelled_because: str | None


@dataclass(frozen=True)
class CustomerTotal:
    """Of one customer in one currency. orders, total_minor: without the cancelled ones."""

    customer_id: str
    currency: str
    orders: int
    total_minor: int
    cancelled: int
    cancelled_minor: int


ORDER = """
    SELECT order_id, CASE WHEN cancelled THEN 'cancelled' ELSE 'placed' END,
           customer_id, currency, total_minor, placed_at, cancelled_because
    FROM order_summaries WHERE order_id = %s
"""
CUSTOMER = """
    SELECT customer_id, currency, placed - cancelled, placed_minor - cancelled_minor, cancelled, cancelled_minor
    FROM customer_totals WHERE customer_id = %s ORDER BY currency
"""


def order(connection: Connection, order_id: str) -> OrderState | None:
    """None when the summary has not heard of the order."""
    row = connection.execute(ORDER, (order_id,)).fetchone()
    return OrderState(*row) if row else None


def customer(connection: Connection, customer_id: str) -> list[CustomerTotal]:
    """By currency; none when the summary has not heard of the customer."""
    return [
        CustomerTotal(customer, currency, orders, int(total), cancelled, int(cancelled_total))
        for customer, currency, orders, total, cancelled, cancelled_total in connection.execute(
            CUSTOMER, (customer_id,)
        )
    ]
