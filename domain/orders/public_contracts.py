"""What the world is told about orders. A published version never changes; a change is a new version."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from domain.contracts import Contract, ContractPart
from domain.values import Currency, Identifier, MinorUnits, Quantity, Text


class OrderedLine(ContractPart):
    sku: Identifier
    quantity: Quantity


class OrderPlaced(Contract):
    """The order is confirmed: it was accepted and stored. Version 1."""

    topic: ClassVar[str] = "orders.placed.v1"
    keyed_by: ClassVar[str] = "order_id"
    owner: ClassVar[str] = "orders"

    event_type: Literal["OrderPlaced"]
    schema_version: Literal[1]
    order_id: Identifier
    customer_id: Identifier
    total_minor: MinorUnits
    currency: Currency
    lines: Annotated[tuple[OrderedLine, ...], Field(min_length=1)] | None = None


class OrderCancelled(Contract):
    """The order was cancelled: whoever reserved or shipped for it should undo that. Version 1."""

    topic: ClassVar[str] = "orders.cancelled.v1"
    keyed_by: ClassVar[str] = "order_id"
    owner: ClassVar[str] = "orders"

    event_type: Literal["OrderCancelled"]
    schema_version: Literal[1]
    order_id: Identifier
    reason: Text
