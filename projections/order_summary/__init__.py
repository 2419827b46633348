"""What became of each order, and what each customer has ordered. Reference for a projection fed by the event store.

Its tables stand in the database of the store, so that each batch and the position it reaches are one transaction.
"""

from pathlib import Path

from infrastructure.migrate import Migrations
from projections.positions import MIGRATIONS as STORE_FEED

FEED = "store"
OUTBOX = ("domain.orders",)
"""Whose mapping makes contracts of the stored events: the same ones, with the same ids, as on Kafka."""

MIGRATIONS = [STORE_FEED, Migrations("order_summary", Path(__file__).parent / "migrations")]
