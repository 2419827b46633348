"""Does a store get slower as it grows? The same work on an empty store and on one with millions of events."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from domain.event_mapper import EventMapper
from domain.orders.application import Orders
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import Timeouts, connect
from tests.benchmarks.append import our_order, saves_per_second
from tests.benchmarks.harness import Comparison, Contender

EVENTS = int(os.environ.get("COUNTERFOIL_BENCH_EVENTS", "5_000_000"))
READ = 20_000
LOADED = 1_000
PAGE = 1_000
GOAL = ">= 0.8"

# Random ids, as real ones are: each row goes to another place of the primary key.
FILL = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT gen_random_uuid()::text, 1, one.topic, one.state
    FROM (SELECT topic, state FROM stored_events LIMIT 1) AS one, generate_series(1, %s)
"""
IDS_AT = "SELECT originator_id FROM stored_events WHERE position = ANY(%s)"


def comparisons(large_dsn: str, small_dsn: str) -> Iterator[Comparison]:
    """The small store holds no more than what is read and appended here."""
    migrate(small_dsn, STORE_MIGRATIONS)
    with closing(Orders(env=store_env(large_dsn))) as large, closing(Orders(env=store_env(small_dsn))) as small:
        for orders, dsn, events in ((large, large_dsn, EVENTS), (small, small_dsn, READ)):
            orders.save(our_order())
            fill(dsn, events)
        for threads in (1, 4):
            yield _against(
                f"Append, {threads} threads",
                "saves/s",
                Contender("empty", partial(saves_per_second, small, our_order, threads)),
                Contender(f"{EVENTS:,} events", partial(saves_per_second, large, our_order, threads)),
            )
        yield _against(
            f"Read the newest {READ:,} by position, bytes to domain events",
            "events/s",
            Contender("empty", lambda: newest_per_second(small_dsn)),
            Contender(f"{EVENTS:,} events", lambda: newest_per_second(large_dsn)),
        )
        yield _against(
            f"Read {READ:,} by position, from anywhere in the store",
            "events/s",
            Contender("empty", lambda: events_per_second(small_dsn, 0)),
            Contender(
                f"{EVENTS:,} events", lambda: events_per_second(large_dsn, random.randrange(max(EVENTS - READ, 1)))
            ),
        )
        yield _against(
            f"Load {LOADED:,} orders by id, from anywhere in the store",
            "orders/s",
            Contender("empty", lambda: loads_per_second(small, small_dsn, READ)),
            Contender(f"{EVENTS:,} events", lambda: loads_per_second(large, large_dsn, EVENTS)),
        )


def _against(title: str, unit: str, *contenders: Contender) -> Comparison:
    return Comparison(title, unit, contenders, GOAL, rounds=9)


def fill(dsn: str, events: int) -> None:
    """And what autovacuum would do in a store that has grown so large over time."""
    started = time.perf_counter()
    with closing(connect(dsn, application_name="benchmark", timeouts=Timeouts(statement=3_600.0))) as connection:
        connection.execute(FILL, (events,))
        connection.execute("VACUUM (ANALYZE) stored_events")
        connection.execute("CHECKPOINT")
    print(f"filled with {events:,} events in {time.perf_counter() - started:,.0f} s", flush=True)


def newest_per_second(dsn: str) -> float:
    with closing(connect(dsn, application_name="benchmark")) as connection:
        highest = EventReader(connection).highest_position()
    return events_per_second(dsn, highest - READ)


def events_per_second(dsn: str, after: int) -> float:
    mapper = EventMapper()
    with closing(connect(dsn, application_name="benchmark")) as connection:
        reader, position, count = EventReader(connection), after, 0
        started = time.perf_counter()
        while count < READ and (events := reader.read(position, PAGE).events):
            count += len([mapper.to_domain_event(event) for event in events])
            position = events[-1].position
        return count / (time.perf_counter() - started)


def loads_per_second(orders: Orders, dsn: str, events: int) -> float:
    positions = random.sample(range(1, events + 1), min(LOADED, events))
    with closing(connect(dsn, application_name="benchmark")) as connection:
        ids = [order_id for (order_id,) in connection.execute(IDS_AT, (positions,))]
    random.shuffle(ids)
    started = time.perf_counter()
    for order_id in ids:
        assert orders.get(order_id) is not None
    return len(ids) / (time.perf_counter() - started)
