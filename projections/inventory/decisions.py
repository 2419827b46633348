"""What becomes of orders and stock when events are applied one after the other: plain values, no database."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

UNDECIDED, RESERVED, REJECTED, CANCELLED = "undecided", "reserved", "rejected", "cancelled"


class Line(NamedTuple):
    """Pieces asked for, and how many of them were missing."""

    sku: str
    quantity: int
    missing: int


@dataclass
class Decisions:
    """statuses: of all orders that will be named. available: pieces per sku; one that is not in it has none.
    lines: of the orders that are known.

    `place` and `cancel` change them as the events would change the rows; what differs in the end is to be written.
    """

    statuses: dict[str, str]
    available: dict[str, int]
    lines: dict[str, tuple[Line, ...]]
    reserved: Counter[str] = field(default_factory=Counter)
    """Pieces per sku that are reserved in addition to those before; below zero where they were released."""
    decided: set[str] = field(default_factory=set)
    """Orders whose status has changed."""

    def place(self, order_id: str, asked_for: Iterable[tuple[str, int]]) -> None:
        """Decides once per order: all lines or none. When it was decided or cancelled before, nothing changes."""
        if self.statuses[order_id] != UNDECIDED:
            return
        lines = tuple(self._line(sku, quantity) for sku, quantity in _added_up(asked_for).items())
        self.lines[order_id] = lines
        if any(line.missing for line in lines):
            self._becomes(order_id, REJECTED)
        else:
            self._becomes(order_id, RESERVED)
            self._take(lines, 1)

    def cancel(self, order_id: str) -> None:
        """Whatever it was before; a reservation is released."""
        lines = self.lines.pop(order_id, ())
        if self.statuses[order_id] == RESERVED:
            self._take(lines, -1)
        if self.statuses[order_id] != CANCELLED:
            self._becomes(order_id, CANCELLED)

    def _line(self, sku: str, quantity: int) -> Line:
        return Line(sku, quantity, max(0, quantity - self.available.get(sku, 0)))

    def _becomes(self, order_id: str, status: str) -> None:
        self.statuses[order_id] = status
        self.decided.add(order_id)

    def _take(self, lines: Iterable[Line], times: int) -> None:
        for line in lines:
            if line.sku in self.available:  # somebody may have removed the row of a sku that was reserved
                self.available[line.sku] -= times * line.quantity
                self.reserved[line.sku] += times * line.quantity


def _added_up(lines: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    quantities: dict[str, int] = {}
    for sku, quantity in lines:
        quantities[sku] = quantities.get(sku, 0) + quantity
    return quantities
