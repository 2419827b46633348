"""Events that were recorded by old versions of the code go through their upcasts, or stop the rebuild by name."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from domain.base import DomainEvent
from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from infrastructure.migrate import migrate
from infrastructure.postgres import Connection, connect
from projections.order_summary import MIGRATIONS
from projections.rebuilding.errors import RebuildStopped
from projections.rebuilding.target import Target
from tests.support.rebuilding import rebuilt
from tests.support.releases import Releases, releases

RELEASE = """
class Basket(Aggregate, topic="basket"):
    class Opened(Aggregate.Created):
        class_version = 2
        customer_id: str
        UPCAST

    customer_id: str
"""
UPCAST = """
        @staticmethod
        def upcast_v1_v2(state):
            state["customer_id"] = "cus_" + str(state.pop("customer"))
"""
INSERT = (
    "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%s, 1, 'basket.opened', %s)"
)
TIME_AND_TOPIC = b'"timestamp":"2026-09-29T10:30:00Z","originator_topic":"basket"'


@pytest.fixture
def release() -> Iterator[Releases]:
    with releases() as installed:
        yield installed


@pytest.fixture
def live(store_dsn: str) -> Iterator[Connection]:
    """One event of the first version, one of the second."""
    migrate(store_dsn, MIGRATIONS)
    with connect(store_dsn, application_name="test") as connection:
        connection.execute(INSERT, ("b-1", b'{"class_version":2,%s,"customer_id":"cus_2"}' % TIME_AND_TOPIC))
        connection.execute(INSERT, ("b-2", b'{%s,"customer":1}' % TIME_AND_TOPIC))
        yield connection


def target_with(release: Releases, upcast: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Target:
    basket = release.install(RELEASE.replace("UPCAST", upcast))

    def to_contracts(event: DomainEvent, event_id: Callable[[type[Contract]], str]) -> tuple[Contract, ...]:
        assert isinstance(event, basket.Opened)  # type: ignore[attr-defined]
        placed = OrderPlaced(
            event_id=event_id(OrderPlaced),
            event_type="OrderPlaced",
            schema_version=1,
            occurred_at=event.timestamp,
            order_id=event.originator_id,
            customer_id=event.customer_id,
            total_minor=1,
            currency="EUR",
        )
        return (placed,)

    outbox = ModuleType("shop.outbox")
    vars(outbox).update(CONTRACTS=(OrderPlaced,), to_contracts=to_contracts)
    monkeypatch.setitem(sys.modules, "shop.outbox", outbox)
    return replace(Target.of("projections.order_summary", dsn, dsn), outboxes=("shop",))


def test_old_events_are_rebuilt_through_their_upcasts(
    release: Releases, live: Connection, store_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_with(release, UPCAST, store_dsn, monkeypatch)
    assert rebuilt(target, accept_differences=True).swapped is not None
    rows = live.execute("SELECT order_id, customer_id FROM order_summaries ORDER BY order_id").fetchall()
    assert rows == [("b-1", "cus_2"), ("b-2", "cus_1")]


def test_without_its_upcast_an_old_event_stops_the_rebuild_by_position_and_version(
    release: Releases, live: Connection, store_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_with(release, "", store_dsn, monkeypatch)
    with pytest.raises(RebuildStopped, match=r"position 2: .*'basket\.opened' v1 .*there is no upcast_v1_v2"):
        rebuilt(target, accept_differences=True)
