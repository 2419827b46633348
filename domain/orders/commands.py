"""What one may ask of an order. A command that was constructed is valid; nothing is stored before."""

from typing import Annotated

from pydantic import Field

from domain.base import Command
from domain.values import Currency, Identifier, MinorUnits, Quantity, Text, UtcTime


class LineItem(Command):
    """quantity: pieces. unit_price_minor: price of one piece, in minor units of the order's currency."""

    sku: Identifier
    quantity: Quantity
    unit_price_minor: MinorUnits


class PlaceOrder(Command):
    """placed_at: when the customer ordered, if that was not just now (an import, a till that was offline)."""

    order_id: Identifier
    customer_id: Identifier
    currency: Currency
    lines: Annotated[tuple[LineItem, ...], Field(min_length=1, max_length=1000)]
    placed_at: UtcTime | None = None


class CancelOrder(Command):
    order_id: Identifier
    reason: Text
