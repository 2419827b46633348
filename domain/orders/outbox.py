"""From a private event to what the world is told. Built field by field, so that nothing private leaks."""

from collections.abc import Callable

from domain.base import DomainEvent
from domain.contracts import Contract
from domain.orders.order import Order, total_minor
from domain.orders.public_contracts import OrderCancelled, OrderedLine, OrderPlaced

CONTRACTS: tuple[type[Contract], ...] = (OrderPlaced, OrderCancelled)
"""Everything this outbox can publish; the relay makes sure of their topics at start."""


def to_contracts(event: DomainEvent, event_id: Callable[[type[Contract]], str]) -> tuple[Contract, ...]:
    """The contracts that tell of this event, in the order in which they are published; often one, or none.

    event_id gives the id of the contract that this event becomes: always the same id for the same event.
    """
    match event:
        case Order.Placed():
            return (_order_placed(event, event_id(OrderPlaced)),)
        case Order.Cancelled():
            return (_order_cancelled(event, event_id(OrderCancelled)),)
        case _:
            return ()


def _order_placed(event: Order.Placed, event_id: str) -> OrderPlaced:
    return OrderPlaced(
        event_id=event_id,
        event_type="OrderPlaced",
        schema_version=1,
        occurred_at=event.placed_at or event.timestamp,
        order_id=event.originator_id,
        customer_id=event.customer_id,
        total_minor=total_minor(event.lines),
        currency=event.currency,
        lines=tuple(OrderedLine(sku=line.sku, quantity=line.quantity) for line in event.lines),
    )


def _order_cancelled(event: Order.Cancelled, event_id: str) -> OrderCancelled:
    return OrderCancelled(
        event_id=event_id,
        event_type="OrderCancelled",
        schema_version=1,
        occurred_at=event.timestamp,
        order_id=event.originator_id,
        reason=event.reason,
    )
