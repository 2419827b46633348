"""`make bench`: every comparison, on an embedded PostgreSQL of its own. Name modules to run only those."""

import sys

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from tests.benchmarks import append, inbox, large_store, read, rebuild, relay, relay_latency
from tests.benchmarks.harness import machine

BENCHMARKS = {
    "append": append,
    "read": read,
    "large_store": large_store,
    "inbox": inbox,
    "rebuild": rebuild,
    "relay": relay,
    "relay_latency": relay_latency,
}


def main(names: list[str]) -> None:
    print(machine())
    with EmbeddedPostgres() as postgres:
        for name in names or BENCHMARKS:
            store, library = postgres.create_database(f"{name}_store"), postgres.create_database(f"{name}_library")
            migrate(store, STORE_MIGRATIONS)
            for comparison in BENCHMARKS[name].comparisons(store, library):
                comparison.measure()
                comparison.report()


if __name__ == "__main__":
    main(sys.argv[1:])
