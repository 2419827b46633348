"""What one of several workers reads and applies at once."""

from collections.abc import Iterator
from itertools import count

import pytest

from domain.orders.order import Order
from infrastructure.event_reader import RecordedEvent
from infrastructure.shards import shard_of
from projections.rebuilding import stored
from projections.rebuilding.source import Place
from projections.rebuilding.stored import StoreSource
from projections.rebuilding.target import Target
from tests.support.summaries import command, orders_in

PAGE = 10
ONE_OF_FOUR = Place("public", run=1, worker=0, workers=4)


@pytest.fixture
def source(store_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreSource]:
    monkeypatch.setattr(stored, "PAGE", PAGE)
    target = Target.of("projections.order_summary", store_dsn, store_dsn)
    with target.connect_store() as store:
        yield StoreSource(target, store)


def place_orders(dsn: str, *workers: int, own_lines: int = 1) -> None:
    """An order for each, that is of this one among four workers. own_lines: of those that are worker 0's."""
    numbers = count()
    with orders_in(dsn) as orders:
        for worker in workers:
            order = command(next(each for n in numbers if shard_of(each := f"ord_{n}", 4) == worker))
            lines = order.lines if worker else order.lines * own_lines
            orders.save(Order.place(order.model_copy(update={"lines": lines})))


def events_of(source: StoreSource) -> list[RecordedEvent]:
    return [each.event for each in source.visible(0)]


def test_a_worker_applies_a_page_of_its_own_events_at_once(source: StoreSource, store_dsn: str) -> None:
    place_orders(store_dsn, *[0, 3] * 15)
    own = [event.position for event in events_of(source) if ONE_OF_FOUR.is_mine(event)]
    first = source.page({0: 0}, ONE_OF_FOUR)
    rest = source.page(first.reached, ONE_OF_FOUR)
    assert [each.reached for each in first.told] == own[:PAGE]
    assert [each.reached for each in rest.told] == own[PAGE:]
    assert not rest.ended
    assert source.page(rest.reached, ONE_OF_FOUR).ended


def test_a_worker_that_has_none_of_the_events_moves_its_place_past_them(source: StoreSource, store_dsn: str) -> None:
    """Instead of reading on to the end, while it could not be told to stop."""
    place_orders(store_dsn, *[1, 2, 3] * 20)
    page = source.page({0: 0}, ONE_OF_FOUR)
    assert (page.told, page.ended) == ([], False)
    assert page.reached == {0: events_of(source)[4 * PAGE - 1].position}


def test_events_that_are_large_end_a_page_before_there_are_many(
    source: StoreSource, store_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_orders(store_dsn, *[0, 1, 2, 3, 3, 3, 3, 3, 3, 3] * 4, own_lines=200)
    largest = len(events_of(source)[0].state)
    monkeypatch.setattr(stored, "PAGE_BYTES", 2 * largest)
    assert len(source.page({0: 0}, ONE_OF_FOUR).told) == 2
