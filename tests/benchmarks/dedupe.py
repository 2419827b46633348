"""Does claiming ids get slower as the table of processed events grows?"""

import itertools
import os
import secrets
import time
from contextlib import ExitStack
from functools import partial

from psycopg import Connection

from infrastructure.postgres import Timeouts, connect
from projections.inbox import claim
from tests.benchmarks.harness import Comparison, Contender
from tests.support.databases import PostgresServer

ROWS = int(os.environ.get("COUNTERFOIL_BENCH_PROCESSED", "5_000_000"))
BATCH = 500
BATCHES = 40
CONSUMER = "benchmark"

# Ids as ours are: the milliseconds of the last hour, then what nobody can guess.
FILL = """
    INSERT INTO processed_events (consumer_name, event_id)
    SELECT 'benchmark', 'evt_' || lpad(to_hex(%(now)s - 3600000 + number * 3600000 / %(rows)s), 12, '0')
        || substr(md5(number::text), 1, 20)
    FROM generate_series(1, %(rows)s::bigint) AS filled (number)
"""

_milliseconds = itertools.count(time.time_ns() // 1_000_000)
"""Later than all that is there, as newly published events are."""


def dedupe(server: PostgresServer, template: str, stack: ExitStack) -> Comparison:
    """stack: drops the two databases."""
    connections = [_filled(server, template, rows, stack) for rows in (0, ROWS)]
    names = ("empty table", f"{ROWS:,} rows")
    contenders = [
        Contender(name, partial(claims_per_second, each)) for name, each in zip(names, connections, strict=True)
    ]
    return Comparison(f"Inbox, claiming {BATCH} new ids at a time", "ids/s", contenders, ">= 0.7")


def claims_per_second(connection: Connection) -> float:
    batches = [[_id() for _ in range(BATCH)] for _ in range(BATCHES)]
    started = time.perf_counter()
    for batch in batches:
        with connection.transaction():
            assert len(claim(connection, CONSUMER, batch)) == BATCH
    return BATCH * BATCHES / (time.perf_counter() - started)


def _id() -> str:
    return f"evt_{next(_milliseconds):012x}{secrets.token_hex(10)}"


def _filled(server: PostgresServer, template: str, rows: int, stack: ExitStack) -> Connection:
    dsn = server.dsn(stack.enter_context(server.database("dedupe", template)))
    patient = Timeouts(statement=1_800)
    connection = stack.enter_context(connect(dsn, application_name="benchmark", timeouts=patient))
    connection.execute(FILL, {"now": time.time_ns() // 1_000_000, "rows": rows})
    connection.execute("VACUUM ANALYZE processed_events")
    connection.execute("CHECKPOINT")
    return connection
