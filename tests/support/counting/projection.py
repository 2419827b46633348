"""Counts the events of each order, writes down their order, and asks for an effect of each."""

from collections.abc import Mapping, Sequence

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections import effects
from projections.base import Projection, Quarantine

COUNT = """
    INSERT INTO counts (order_id, events) VALUES (%s, 1)
    ON CONFLICT (order_id) DO UPDATE SET events = counts.events + 1
"""


class Counting(Projection):
    consumer_name = "counting"
    contracts = (OrderPlaced, OrderCancelled)
    rebuilt_in_parallel = True
    agreeing: Mapping[str, Sequence[str]] | None = {"counts": ("events",)}  # places are in the order of arrival

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        tx.execute(COUNT, (contract.key,))
        tx.execute("INSERT INTO places (event_id) VALUES (%s)", (contract.event_id,))
        effects.request(tx, self.consumer_name, contract, "counted", {})
        return None


PROJECTION = Counting()
