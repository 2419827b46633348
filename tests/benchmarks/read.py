"""Reading by position, stored bytes to domain events, against the library's select_notifications and mapper."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from eventsourcing.domain import Aggregate as LibraryAggregate
from eventsourcing.persistence import JSONTranscoder, Transcoding

from domain.event_mapper import EventMapper
from domain.orders.application import Orders
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.garbage import collect_rarely
from infrastructure.postgres import connect
from tests.benchmarks.append import LibraryOrders, library_env, library_order, our_order
from tests.benchmarks.harness import Comparison, Contender

EVENTS = 20_000
PAGE = 1_000


@dataclass(frozen=True)
class Line:
    sku: str
    quantity: int
    unit_price_minor: int


class TypedLibraryOrder(LibraryAggregate):
    """Its lines are value objects again when it is read, as an Order's are; nothing of it is validated."""

    def __init__(self, customer_id: str, currency: str, lines: list[Line]) -> None:
        self.customer_id = customer_id
        self.currency = currency
        self.lines = lines


class LineAsDict(Transcoding):
    type = Line
    name = "line"

    def encode(self, obj: Line) -> dict[str, Any]:
        return {"sku": obj.sku, "quantity": obj.quantity, "unit_price_minor": obj.unit_price_minor}

    def decode(self, data: dict[str, Any]) -> Line:
        return Line(**data)


class TypedLibraryOrders(LibraryOrders):
    def register_transcodings(self, transcoder: JSONTranscoder) -> None:
        super().register_transcodings(transcoder)
        transcoder.register(LineAsDict())


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    collect_rarely()  # as in the commands; it serves all contenders alike
    env = library_env(library_dsn)
    with (
        closing(Orders(env=store_env(store_dsn))) as ours,
        closing(LibraryOrders(env=env)) as library,
        closing(TypedLibraryOrders(env=env)) as typed,
    ):
        for _ in range(EVENTS // PAGE):
            ours.save(*(our_order() for _ in range(PAGE)))
            library.save(*(library_order() for _ in range(PAGE)))
            typed.save(*(TypedLibraryOrder("cus_17", "EUR", [Line("pen", 2, 345)]) for _ in range(PAGE)))
        yield Comparison(
            f"Read {EVENTS:,} events by position, bytes to domain events",
            "events/s",
            (
                Contender("library, lines as value objects", lambda: library_events_per_second(typed)),
                Contender("counterfoil", lambda: events_per_second(store_dsn)),
                Contender("library, lines left as dicts", lambda: library_events_per_second(library)),
            ),
            ">= 2",
            rounds=9,
        )


def events_per_second(dsn: str) -> float:
    mapper = EventMapper()
    with closing(connect(dsn, application_name="benchmark")) as connection:
        reader, position, count = EventReader(connection), 0, 0
        started = time.perf_counter()
        while events := reader.read(position, PAGE).events:
            count += len([mapper.to_domain_event(event) for event in events])
            position = events[-1].position
        return count / (time.perf_counter() - started)


def library_events_per_second(application: LibraryOrders) -> float:
    position, count = 0, 0
    started = time.perf_counter()
    while events := application.recorder.select_notifications(position, PAGE, inclusive_of_start=False):
        count += len([application.mapper.to_domain_event(event) for event in events])
        position = events[-1].id
    return count / (time.perf_counter() - started)
