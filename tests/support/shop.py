"""A small business whose aggregates take snapshots."""

from collections.abc import Iterable
from typing import Any

from eventsourcing.application import project_aggregate

from domain.application import Application
from domain.base import Aggregate
from domain.snapshots import MemorySnapshots, Outcome, Snapshot, SnapshotStore
from infrastructure import metrics

BASKET = """
class Line(Command):
    sku: str
    quantity: int

class Basket(Aggregate, topic="basket"):
    snapshot_every = 5

    class Opened(Aggregate.Created):
        customer: str

    class Filled(Aggregate.Event):
        line: Line

        def apply(self, basket):
            basket.lines = (*basket.lines, self.line)
            basket.pieces += min(self.line.quantity, 1000)

    customer: str
    lines: tuple[Line, ...] = field(default=(), init=False)
    pieces: int = field(default=0, init=False)
    gift: Line = field(default=Line(sku="pen", quantity=1), init=False)

    @classmethod
    def open(cls, basket_id, customer="cus_1"):
        return cls._create(cls.Opened, id=basket_id, customer=customer)

    def fill(self, quantity=1, sku="pen"):
        self.trigger_event(self.Filled, line=Line(sku=sku, quantity=quantity))
"""
"""The first release. Others are made from it by replacing text."""


class Shop(Application):
    """Opens and fills baskets, and knows what was read to load them."""

    reads: list[tuple[int | None, int]]
    """Of each read of events: above which version, and how many there were."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        super().__init__(env)
        metrics.SNAPSHOTS.clear()
        self.reads = []
        select = self.recorder.select_events

        def reading(originator_id: str, *, gt: int | None = None, **bounds: Any) -> Any:
            events = select(originator_id, gt=gt, **bounds)
            self.reads.append((gt, len(events)))
            return events

        self.recorder.select_events = reading  # type: ignore[method-assign,assignment]
        self.basket: type[Any] = Aggregate

    @property
    def store(self) -> SnapshotStore:
        return self.loader._store

    def open_and_fill(self, events: int, basket_id: str = "b-1") -> None:
        """A basket of so many events, each stored by a command of its own."""
        basket = self.basket.open(basket_id)
        self.save(basket)
        for quantity in range(1, events):
            self.fill(quantity, basket_id)

    def fill(self, quantity: int = 1, basket_id: str = "b-1") -> None:
        basket = self.load(basket_id)
        basket.fill(quantity)
        self.save(basket)

    def load(self, basket_id: str = "b-1") -> Any:
        basket = self.find(self.basket, basket_id)
        assert basket is not None
        return basket

    def replayed(self, basket_id: str = "b-1") -> Any:
        """What all the events make, with nothing in between."""
        return self.project(self.events.get(basket_id))

    def project(self, events: Iterable[Any]) -> Any:
        return project_aggregate(None, events)

    def snapshot(self) -> Snapshot:
        found = self.store.get("b-1")
        assert found is not None
        return found

    def counted(self, outcome: Outcome) -> int:
        if isinstance(self.store, MemorySnapshots):
            return self.store.counts["basket", outcome]
        return int(metrics.SNAPSHOTS.labels("basket", outcome)._value.get())


def changed(old: str, new: str, source: str = BASKET) -> str:
    """The source of another release."""
    assert old in source
    return source.replace(old, new)
