"""Several businesses may share one store: each relay meets the events of all of them."""

import os
from pathlib import Path

from domain.orders.application import Orders
from domain.orders.commands import LineItem, PlaceOrder
from domain.orders.public_contracts import OrderPlaced
from infrastructure.event_store import store_env
from tests.support.kafka import EmptyTopics, Kafka
from tests.support.processes import Programs
from tests.support.stored_events import autocommit
from tests.support.wait import eventually

REFUND = """
from domain.base import Aggregate

class Refund(Aggregate, topic="refund"):
    class Asked(Aggregate.Created):
        pass
"""

WITH_ANOTHER_FOLDER = (
    "import domain, os; domain.__path__.append(os.environ['FOLDER']); import counterfoil.cli as c; c.main()"
)


def test_a_relay_of_one_business_passes_the_events_of_another(
    store_dsn: str, kafka: Kafka, empty_topics: EmptyTopics, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "domain" / "refunds").mkdir(parents=True)
    (tmp_path / "domain" / "refunds" / "__init__.py").touch()
    (tmp_path / "domain" / "refunds" / "refund.py").write_text(REFUND)
    empty_topics(OrderPlaced.topic)
    with autocommit(store_dsn) as session:
        session.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('r-1', 1,"
            """ 'refund.asked', '{"timestamp":"2026-01-01T00:00:00Z","originator_topic":"refund"}')"""
        )
        with Orders(env=store_env(store_dsn)) as orders:
            line = LineItem(sku="pen", quantity=1, unit_price_minor=100)
            orders.place(PlaceOrder(order_id="o-1", customer_id="c-1", currency="EUR", lines=(line,)))
        environment = {
            "COUNTERFOIL_STORE_DSN": store_dsn,
            "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "FOLDER": os.fspath(tmp_path / "domain"),
        }
        programs.python("-c", WITH_ANOTHER_FOLDER, "relay", "domain.orders", env=environment)

        def checkpoint() -> tuple[object, ...] | None:
            return session.execute("SELECT position FROM relay_checkpoints WHERE position > 0").fetchone()

        assert eventually(checkpoint, within=30) == (2,)
