"""`make bench`: every comparison, on an embedded PostgreSQL of its own."""

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from tests.benchmarks import append
from tests.benchmarks.harness import machine


def main() -> None:
    print(machine())
    with EmbeddedPostgres() as postgres:
        store, library = postgres.create_database("store"), postgres.create_database("library")
        migrate(store, STORE_MIGRATIONS)
        for comparison in append.comparisons(store, library):
            comparison.measure()
            comparison.report()


if __name__ == "__main__":
    main()
