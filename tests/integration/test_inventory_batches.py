"""A batch of events comes to exactly what the same events come to one by one."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import Connection, Rollback

from domain.contracts import Contract
from projections.inventory.projection import Inventory
from tests.support.inventory import Rows, connected, everything, fill
from tests.support.inventory_one_by_one import InventoryOneByOne
from tests.support.messages import cancelled, placed

SKUS = st.sampled_from(["pen", "ink", "chalk"])
"""Stock does not know chalk."""
ORDERS = st.sampled_from([f"ord_{number}" for number in range(5)])
LINES = st.lists(st.tuples(SKUS, st.integers(1, 4)), max_size=3)
"""An order with none of them is refused."""
EVENTS = st.one_of(
    st.builds(lambda order_id, lines: placed(order_id, *lines), ORDERS, LINES), st.builds(cancelled, ORDERS)
)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=12), min_size=1, max_size=4)

Apply = Callable[[Sequence[Contract], Connection], set[str]]
Ends = list[tuple[set[str], Rows]]


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        yield connection


def one_by_one(batch: Sequence[Contract], tx: Connection) -> set[str]:
    """The events that were refused."""
    projection, refused = InventoryOneByOne(), set()
    projection.prepare(batch, tx)
    for event in batch:
        if projection.handle(event, tx):
            refused.add(event.event_id)
    return refused


def all_at_once(batch: Sequence[Contract], tx: Connection) -> set[str]:
    """The same; what is refused is left out and the rest done again."""
    projection = Inventory()
    refused = set(projection.handle_batch(batch, tx))
    rest = [event for event in batch if event.event_id not in refused]
    if refused and rest:
        assert not projection.handle_batch(rest, tx)
    return refused


def ends(apply: Apply, batches: Sequence[Sequence[Contract]], connection: Connection, stock: dict[str, int]) -> Ends:
    """What was refused and all rows, after each batch."""
    found: Ends = []
    with connection.transaction():
        fill(connection, stock)
        for batch in batches:
            found.append((apply(batch, connection), everything(connection)))
        raise Rollback
    return found


@given(batches=BATCHES, pens=st.integers(0, 12), inks=st.integers(0, 12))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_ends_exactly_as_its_events_one_by_one(
    database: Connection, batches: list[list[Contract]], pens: int, inks: int
) -> None:
    stock = {"pen": pens, "ink": inks}
    assert ends(all_at_once, batches, database, stock) == ends(one_by_one, batches, database, stock)
