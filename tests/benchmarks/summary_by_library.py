"""The order summary as the library would keep it: its own runner, view and tracking, an event a transaction."""

import time
from typing import Any

import psycopg
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.utils import get_topic
from psycopg.sql import SQL, Identifier

from tests.benchmarks.append import LibraryOrder, LibraryOrders, library_env

TABLES = ("summaries_by_library", "totals_by_library")
CREATE = (
    """CREATE TABLE IF NOT EXISTS {0}.summaries_by_library (order_id text PRIMARY KEY, customer_id text, currency text,
       total_minor bigint, placed_at timestamptz)""",
    """CREATE TABLE IF NOT EXISTS {0}.totals_by_library (customer_id text, currency text, placed bigint,
       placed_minor numeric(38, 0), PRIMARY KEY (customer_id, currency))""",
)
SUMMARY = "INSERT INTO {0}.summaries_by_library VALUES (%s, %s, %s, %s, %s)"
TOTAL = """
    INSERT INTO {0}.totals_by_library AS known VALUES (%s, %s, 1, %s)
    ON CONFLICT (customer_id, currency)
    DO UPDATE SET placed = known.placed + 1, placed_minor = known.placed_minor + excluded.placed_minor
"""


class Summaries(PostgresTrackingRecorder):
    def __init__(self, datastore: Any, **kwargs: Any) -> None:
        super().__init__(datastore, **kwargs)
        schema = Identifier(datastore.schema)
        self.sql_create_statements += [SQL(statement).format(schema) for statement in CREATE]
        self._summary, self._total = SQL(SUMMARY).format(schema), SQL(TOTAL).format(schema)

    def keep(self, event: Any, tracking: Tracking) -> None:
        total = sum(line["quantity"] * line["unit_price_minor"] for line in event.lines)
        with self.datastore.transaction(commit=True) as cursor:
            order_id = str(event.originator_id)
            cursor.execute(self._summary, (order_id, event.customer_id, event.currency, total, event.timestamp))
            cursor.execute(self._total, (event.customer_id, event.currency, total))
            self._insert_tracking(cursor, tracking)


class KeepsSummaries(Projection[Summaries]):
    name = "summaries"
    topics = (get_topic(LibraryOrder.Created),)

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        self.view.keep(domain_event, tracking)


def library_events_per_second(dsn: str, last: int) -> float:
    """From nothing to the event at this position."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE '%tracking%'").fetchall()
        for name in [*TABLES, *(each for (each,) in names)]:
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(name)))
    env = library_env(dsn)
    started = time.perf_counter()
    runner = ProjectionRunner(
        application_class=LibraryOrders, projection_class=KeepsSummaries, view_class=Summaries, env=env
    )
    with runner:
        runner.wait(last, timeout=600)
    return last / (time.perf_counter() - started)
