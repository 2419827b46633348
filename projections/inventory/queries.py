"""What one may ask of the inventory, and the one thing one may tell it: how much there is."""

from dataclasses import dataclass

from psycopg import Connection
from pydantic import TypeAdapter, ValidationError

from domain.base import DomainError
from domain.values import LARGEST_INTEGER, Identifier


@dataclass(frozen=True)
class Stock:
    """Pieces of one sku. reserved: for orders; never more than on_hand."""

    sku: str
    on_hand: int
    reserved: int

    @property
    def available(self) -> int:
        return self.on_hand - self.reserved


@dataclass(frozen=True)
class ReservationLine:
    """quantity: pieces asked for. missing: how many of them were not available, 0 when reserved."""

    sku: str
    quantity: int
    missing: int


@dataclass(frozen=True)
class Reservation:
    """status: `reserved`, `rejected` or `cancelled`. lines: by sku; none when cancelled."""

    order_id: str
    status: str
    lines: tuple[ReservationLine, ...]


# The condition is checked on the locked row, so that no reservation can come in between.
SET_STOCK = """
    INSERT INTO stock (sku, on_hand) VALUES (%(sku)s, %(on_hand)s)
    ON CONFLICT (sku) DO UPDATE SET on_hand = excluded.on_hand WHERE stock.reserved <= excluded.on_hand
    RETURNING sku, on_hand, reserved
"""
STOCK = "SELECT sku, on_hand, reserved FROM stock ORDER BY sku"
RESERVATION = """
    SELECT status, sku, quantity, missing
    FROM reservations LEFT JOIN reservation_lines USING (order_id)
    WHERE order_id = %s ORDER BY sku
"""

_sku = TypeAdapter[str](Identifier)


def set_stock(connection: Connection, sku: str, on_hand: int) -> Stock:
    """Says how many pieces there are. Raises DomainError, having changed nothing.

    Its rules: `invalid_sku`; `invalid_quantity` outside 0 ... 2^53-1; `stock_below_reserved` when more
    than that is reserved already.
    """
    try:
        _sku.validate_python(sku)
    except ValidationError:
        raise DomainError("invalid_sku", repr(sku), "A sku has 1 to 128 characters, no control character") from None
    if not 0 <= on_hand <= LARGEST_INTEGER:
        raise DomainError("invalid_quantity", sku, "The pieces on hand must be between 0 and 2^53-1")
    row = connection.execute(SET_STOCK, {"sku": sku, "on_hand": on_hand}).fetchone()
    if row is None:
        raise DomainError("stock_below_reserved", sku, "More pieces are reserved; cancel orders first")
    return Stock(*row)


def stock(connection: Connection) -> list[Stock]:
    """All of it, by sku."""
    return [Stock(*row) for row in connection.execute(STOCK)]


def reservation(connection: Connection, order_id: str) -> Reservation | None:
    """None when the inventory has not heard of the order."""
    rows = connection.execute(RESERVATION, (order_id,)).fetchall()
    if not rows:
        return None
    lines = tuple(ReservationLine(*line) for _, *line in rows if line[0] is not None)
    return Reservation(order_id, rows[0][0], lines)
