"""The order: its state, its private events, and the rules."""

from dataclasses import field
from typing import Self

from domain.base import Aggregate, DomainError, EventPart
from domain.orders.commands import PlaceOrder
from domain.values import LARGEST_INTEGER, Currency, Identifier, MinorUnits, Quantity, Text, UtcTime


class Line(EventPart):
    """quantity: pieces. unit_price_minor: price of one piece, in minor units of the order's currency."""

    sku: Identifier
    quantity: Quantity
    unit_price_minor: MinorUnits


class Order(Aggregate, topic="order"):
    """One customer's order, from placed to cancelled."""

    class Placed(Aggregate.Created):
        customer_id: Identifier
        currency: Currency
        lines: tuple[Line, ...]
        placed_at: UtcTime | None

    class Cancelled(Aggregate.Event):
        reason: Text

        def apply(self, aggregate: "Order") -> None:
            aggregate.cancelled_because = self.reason

    customer_id: str
    currency: str
    lines: tuple[Line, ...]
    placed_at: UtcTime | None
    cancelled_because: str | None = field(default=None, init=False)

    @classmethod
    def place(cls, command: PlaceOrder) -> Self:
        """Raises DomainError `total_too_large` when the total is not an exact JSON integer."""
        lines = _lines(command)
        if total_minor(lines) > LARGEST_INTEGER:
            raise DomainError("total_too_large", command.order_id, "The total is larger than 2^53 - 1")
        return cls._create(
            cls.Placed,
            id=command.order_id,
            customer_id=command.customer_id,
            currency=command.currency,
            lines=lines,
            placed_at=command.placed_at,
        )

    def is_what_was_asked(self, command: PlaceOrder) -> bool:
        """Whether the command, sent again, asks for this very order."""
        return (self.customer_id, self.currency, self.lines, self.placed_at) == (
            command.customer_id,
            command.currency,
            _lines(command),
            command.placed_at,
        )

    def cancel(self, reason: str) -> None:
        """Raises DomainError `already_cancelled` when it was cancelled for another reason."""
        if self.cancelled_because == reason:
            return
        if self.cancelled_because is not None:
            raise DomainError("already_cancelled", self.id, "The order was cancelled for another reason")
        self.trigger_event(self.Cancelled, reason=reason)

    @property
    def status(self) -> str:
        return "placed" if self.cancelled_because is None else "cancelled"

    @property
    def total_minor(self) -> int:
        return total_minor(self.lines)


def _lines(command: PlaceOrder) -> tuple[Line, ...]:
    """The command's shape may change with its users; what is stored must not change with it."""
    return tuple(
        Line(sku=line.sku, quantity=line.quantity, unit_price_minor=line.unit_price_minor) for line in command.lines
    )


def total_minor(lines: tuple[Line, ...]) -> int:
    return sum(line.quantity * line.unit_price_minor for line in lines)
