"""Reading by position, stored bytes to domain events, against the library's select_notifications and mapper."""

import time
from collections.abc import Iterator
from contextlib import closing

from domain.event_mapper import EventMapper
from domain.orders.application import Orders
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.postgres import connect
from tests.benchmarks.append import LibraryOrders, library_env, library_order, our_order
from tests.benchmarks.harness import Comparison, Contender

EVENTS = 20_000
PAGE = 1_000


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    with (
        closing(Orders(env=store_env(store_dsn))) as ours,
        closing(LibraryOrders(env=library_env(library_dsn))) as library,
    ):
        for _ in range(EVENTS // PAGE):
            ours.save(*(our_order() for _ in range(PAGE)))
            library.save(*(library_order() for _ in range(PAGE)))
        yield Comparison(
            f"Read {EVENTS:,} events by position, bytes to domain events",
            "events/s",
            (
                Contender("library", lambda: library_events_per_second(library)),
                Contender("counterfoil", lambda: events_per_second(store_dsn)),
            ),
            ">= 2",
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
