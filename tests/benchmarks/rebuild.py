"""Rebuilding the order summary, against the library's own runner; how long readers wait; what memory it takes."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from threading import Event

from infrastructure.garbage import collect_rarely
from infrastructure.migrate import migrate
from infrastructure.postgres import Connection, Timeouts, connect
from projections.order_summary import MIGRATIONS
from projections.rebuilding import state
from projections.rebuilding.differences import Differences
from projections.rebuilding.session import Session, session
from projections.rebuilding.target import Target
from tests.benchmarks.append import LibraryOrders, library_env, library_order
from tests.benchmarks.harness import Comparison, Contender
from tests.benchmarks.summary_by_library import library_events_per_second

MANY = int(os.environ.get("COUNTERFOIL_BENCH_EVENTS", "1_000_000"))
EVENTS = min(500_000, MANY)
LIBRARY_EVENTS = 2_000

STORE_ORDERS = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT gen_random_uuid()::text, 1, 'order.placed', convert_to(
        '{"timestamp":"2026-09-29T10:30:00.123456Z","originator_topic":"order","customer_id":"cus_'
        || number %% 1000 || '","currency":"EUR","lines":[{"sku":"pen","quantity":2,"unit_price_minor":345}],'
        || '"placed_at":null}', 'UTF8')
    FROM generate_series(1, %s) AS number
"""
FILL = """
    INSERT INTO {}order_summaries (order_id, customer_id, currency, total_minor, placed_at, cancelled)
    SELECT 'ord_' || number, 'cus_' || number %% 1000, 'EUR', 690, now(), false FROM generate_series(1, %s) AS number
"""


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    os.environ["COUNTERFOIL_STORE_DSN"] = store_dsn
    collect_rarely()  # as in the command; it serves all contenders alike
    migrate(store_dsn, MIGRATIONS)
    target = Target.of("projections.order_summary", store_dsn)
    with _patient(store_dsn) as connection:
        _swap_of_many_rows(target, connection)
        connection.execute(STORE_ORDERS, (EVENTS,))
        connection.execute("ANALYZE stored_events")
        with closing(LibraryOrders(env=library_env(library_dsn))) as library:
            for _ in range(LIBRARY_EVENTS // 500):
                library.save(*(library_order() for _ in range(500)))
        yield Comparison(
            f"Rebuild the order summary from {EVENTS:,} events (the library: {LIBRARY_EVENTS:,})",
            "events/s",
            (
                Contender(
                    "library's ProjectionRunner", partial(library_events_per_second, library_dsn, LIBRARY_EVENTS)
                ),
                Contender("one worker", partial(_events_per_second, target, 1)),
                Contender("two workers", partial(_events_per_second, target, 2)),
            ),
            ">= 30 for one worker, and 1.5 times that for two",
            rounds=3,
        )
        _fixed_part(target)
        connection.execute(STORE_ORDERS, (MANY - EVENTS,))
        _memory(target)


def _events_per_second(target: Target, workers: int) -> float:
    """From nothing to tables that have caught up; the start of two processes is in it."""
    with session(target) as work:
        started = time.perf_counter()
        events = _filled(work, workers)
        work.finish()
        rate = events / (time.perf_counter() - started)
        work.drop()
        return rate


def _fixed_part(target: Target) -> None:
    """What the rates above contain, however many events there are: workers that start, find nothing, and end."""
    print("\nOf that, whatever the number of events: s until workers without work have started and ended")
    for workers in (1, 2):
        with session(target) as work:
            _filled(work, workers)
            started = time.perf_counter()
            work.fill(Event(), lambda *_: None)
            print(f"  {workers}: {time.perf_counter() - started:.2f}", flush=True)
            work.drop()


def _filled(work: Session, workers: int) -> int:
    work.begin(workers)
    work.fill(Event(), lambda *_: None)
    return state.progress(work.connection, work.target.name).applied


def _swap_of_many_rows(target: Target, connection: Connection) -> None:
    """With an empty store, so that both sides have come as far as there is."""
    with session(target) as work:
        work.begin(1)
        work.fill(Event(), lambda *_: None)
        for schema in ("", f"{target.other_schema}."):
            connection.execute(FILL.format(schema).encode(), (1_000_000,))
        held = []
        for _ in range(5):
            started = time.perf_counter()
            swapped = work.swap(Differences(target, work.live), Event(), 60.0, lambda *_: None)
            assert swapped is not None
            held.append(f"{swapped.held * 1000:.0f} of {(time.perf_counter() - started) * 1000:.0f}")
        print(
            f"\nSwap with 1,000,000 rows: readers waited ms of ms in all  (goal < 100)\n  {', '.join(held)}", flush=True
        )
        work.drop()
    connection.execute("TRUNCATE order_summaries")


def _memory(target: Target) -> None:
    """One worker, in this process, so that all of it is seen."""
    with session(target) as work:
        before, started = _resident_mib(), time.perf_counter()
        most = before

        def look(*_: object) -> None:
            nonlocal most
            most = max(most, _resident_mib())

        work.begin(1)
        work.fill(Event(), look)
        events = state.progress(work.connection, target.name).applied
        work.compare(Event(), 0.0, look)
        look()
        work.drop()
    print(f"\nMemory of a rebuild of {events:,} events  (goal: at most 150 MiB above the start)")
    print(f"  {before} MiB at the start, {most} MiB at most, {time.perf_counter() - started:.0f} s", flush=True)


def _resident_mib() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def _patient(dsn: str) -> Connection:
    return connect(dsn, application_name="benchmark", timeouts=Timeouts(statement=3_600.0))
