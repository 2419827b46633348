"""The order: its state, its private events, and the rules."""

from dataclasses import field
from typing import Self

from domain.base import Aggregate, DomainError
from domain.orders.commands import LineItem, PlaceOrder
from domain.values import LARGEST_INTEGER, Currency, Identifier, Text, UtcTime


class Order(Aggregate, topic="order"):
    """One customer's order, from placed to cancelled."""

    class Placed(Aggregate.Created):
        customer_id: Identifier
        currency: Currency
        lines: tuple[LineItem, ...]
        placed_at: UtcTime | None

    class Cancelled(Aggregate.Event):
        reason: Text

        def apply(self, aggregate: "Order") -> None:
            aggregate.cancelled_because = self.reason

    customer_id: str
    currency: str
    lines: tuple[LineItem, ...]
    placed_at: UtcTime | None
    cancelled_because: str | None = field(default=None, init=False)

    @classmethod
    def place(cls, command: PlaceOrder) -> Self:
        """Raises DomainError `total_too_large` when the total is not an exact JSON integer."""
        if total_minor(command.lines) > LARGEST_INTEGER:
            raise DomainError("total_too_large", command.order_id, "The total is larger than 2^53 - 1")
        return cls._create(
            cls.Placed,
            id=command.order_id,
            customer_id=command.customer_id,
            currency=command.currency,
            lines=command.lines,
            placed_at=command.placed_at,
        )

    def is_what_was_asked(self, command: PlaceOrder) -> bool:
        """Whether the command, sent again, asks for this very order."""
        return (self.customer_id, self.currency, self.lines, self.placed_at) == (
            command.customer_id,
            command.currency,
            command.lines,
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


def total_minor(lines: tuple[LineItem, ...]) -> int:
    return sum(line.quantity * line.unit_price_minor for line in lines)
