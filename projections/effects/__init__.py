"""External effects: a mail, a payment, a call to another house. Asked for in the transaction, done outside of it.

A projection asks for an effect with `request`, which writes a row in the transaction that claims the event.
A worker (`counterfoil effects send MODULE`) finds the row after the commit and calls the provider, with the
row's id as idempotency key.

Promised: an effect is asked for exactly once for an event, whatever is delivered twice, reset or replayed; its
provider is called at least once, always with the same key and content; effects of one key are called for in
their order. So a provider that honours idempotency keys does it exactly once.

A rebuild sends nothing. Whoever applies events again to fill a shadow calls `silence(tx)` in each of these
transactions: then `request` writes no row, in whichever schema. And the tables of the component named
COMPONENT are never swapped: what was asked for and sent is a fact of the outside world, which no replay changes.
"""

from pathlib import Path

from infrastructure.migrate import Migrations
from projections.effects.requests import request, silence

COMPONENT = "effects"

MIGRATIONS = Migrations(COMPONENT, Path(__file__).parent / "migrations")
"""The table of effects, which the database of a projection that asks for some has."""

__all__ = ["COMPONENT", "MIGRATIONS", "request", "silence"]
