"""Services and databases for the tests: real PostgreSQL, real Kafka, and nothing shared but the servers."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from counterfoil.embedded import EmbeddedPostgres
from tests.support.apache_kafka import RealKafka
from tests.support.databases import PostgresServer, running_postgres
from tests.support.kafka import (
    EmptyTopics,
    Kafka,
    MakeTopic,
    create_topic,
    delete_topic,
    empty_topic,
    running_kafka,
    why_there_is_no_real_kafka,
    why_we_cannot_start_a_real_kafka,
)
from tests.support.kafka_programs import KafkaPrograms, find_kafka_programs
from tests.support.pgbouncer import PgBouncer, why_there_is_no_pgbouncer
from tests.support.processes import Programs

KAFKA, PGBOUNCER = "real Apache Kafka", "pgbouncer"
_not_run: dict[str, list[str]] = {}
"""What was missing, and why, once for each test that needed it."""


# --- PostgreSQL ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server, the same for all tests: `postgres.dsn(database)`."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def empty_dsn(postgres: PostgresServer) -> Iterator[str]:
    """A database with nothing in it."""
    with postgres.database("empty") as name:
        yield postgres.dsn(name)


@pytest.fixture(scope="session")
def _store_template(postgres: PostgresServer) -> Iterator[str]:
    from infrastructure.migrate import STORE_MIGRATIONS, migrate

    with postgres.database("store_template") as name:
        migrate(postgres.dsn(name), STORE_MIGRATIONS)
        yield name


@pytest.fixture
def store_dsn(postgres: PostgresServer, _store_template: str) -> Iterator[str]:
    """A fresh, migrated store database. All of them have one store identity, as copies have."""
    with postgres.database("store", _store_template) as name:
        yield postgres.dsn(name)


@pytest.fixture(scope="session")
def _inventory_template(postgres: PostgresServer) -> Iterator[str]:
    from infrastructure.migrate import migrate
    from projections.inventory import MIGRATIONS

    with postgres.database("inventory_template") as name:
        migrate(postgres.dsn(name), MIGRATIONS)
        yield name


@pytest.fixture
def inventory_dsn(postgres: PostgresServer, _inventory_template: str) -> Iterator[str]:
    """A fresh, migrated inventory database."""
    with postgres.database("inventory", _inventory_template) as name:
        yield postgres.dsn(name)


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, to be killed and restarted; starting it takes 1-2 s."""
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """A pgbouncer in transaction mode in front of the tests' server, with a pool of 3: `pgbouncer.through(dsn)`."""
    with PgBouncer(postgres.dsn()) as pooler:
        yield pooler


# --- Kafka --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A running broker, the same for all tests: `kafka.bootstrap`.

    Apache Kafka where there is one, always so in tests marked `kafka`; else the embedded broker.
    """
    with running_kafka() as broker:
        yield broker


@pytest.fixture
def own_kafka() -> Iterator[RealKafka]:
    """A real Apache Kafka of the test's own, to be killed and restarted; starting it takes some 5 s."""
    programs = find_kafka_programs()
    assert isinstance(programs, KafkaPrograms)  # else pytest_runtest_setup has skipped the test
    with RealKafka(programs) as broker:
        yield broker


@pytest.fixture
def topics(kafka: Kafka, unique_name: Callable[[str], str]) -> Iterator[MakeTopic]:
    """Makes uniquely named topics in the shared broker: `topics("orders", partitions=3)`."""
    with ExitStack() as cleanup:

        def make(name: str = "topic", partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
            topic = unique_name(name)
            create_topic(kafka.bootstrap, topic, partitions, config)
            cleanup.callback(delete_topic, kafka.bootstrap, topic)
            return topic

        yield make


@pytest.fixture
def empty_topics(kafka: Kafka) -> Iterator[EmptyTopics]:
    """For programs whose topics have fixed names: `empty_topics("orders.placed.v1", partitions=6)`.

    It removes what earlier tests left in them; end the programs before the test ends.
    """
    with ExitStack() as cleanup:

        def make(*names: str, partitions: int = 1) -> None:
            for name in names:
                empty_topic(kafka.bootstrap, name, partitions)
                cleanup.callback(delete_topic, kafka.bootstrap, name)

        yield make


# --- Names --------------------------------------------------------------------------------------------


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """`unique_name("relay")` is a name that begins so and that nobody else uses."""
    return lambda name: f"{name}-{secrets.token_hex(5)}"


# --- Programs -----------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts our programs as real processes and ends them with the test: `programs.counterfoil("relay", ...)`."""
    with Programs(tmp_path) as started:
        yield started


# --- Without a real Kafka or pgbouncer ------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for a real Kafka now: its download must not count against the time of the first test.

    In CI nothing is skipped quietly: no real Kafka or no pgbouncer, no run.
    """
    if session.config.option.collectonly:
        return
    for name, why_missing in ((KAFKA, _why_kafka_is_missing), (PGBOUNCER, _why_pgbouncer_is_missing)):
        missing = next(filter(None, map(why_missing, session.items)), None)
        if missing and os.environ.get("CI") == "true":
            raise pytest.UsageError(f"CI=true, and tests need a {name}: {missing}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _needs_real_kafka(item) and (missing := _why_kafka_is_missing(item)):
        _skip(KAFKA, missing)
    if missing := _why_pgbouncer_is_missing(item):
        _skip(PGBOUNCER, missing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, reasons in _not_run.items():
        line = f"NO {name.upper()}: {len(reasons)} tests did NOT run ({reasons[0]})"
        terminalreporter.write_line(line, red=True, bold=True)


def _skip(name: str, reason: str) -> None:
    _not_run.setdefault(name, []).append(reason)
    pytest.skip(f"needs a {name}: {reason}")


def _needs_real_kafka(item: pytest.Item) -> bool:
    return item.get_closest_marker("kafka") is not None or "own_kafka" in _fixtures_of(item)


def _why_kafka_is_missing(item: pytest.Item) -> str | None:
    """None when the test has the real Kafka that it would use, or uses none."""
    if "own_kafka" in _fixtures_of(item):
        return why_we_cannot_start_a_real_kafka()
    if item.get_closest_marker("kafka") is not None or "kafka" in _fixtures_of(item):
        return why_there_is_no_real_kafka()
    return None


def _why_pgbouncer_is_missing(item: pytest.Item) -> str | None:
    return why_there_is_no_pgbouncer() if "pgbouncer" in _fixtures_of(item) else None


def _fixtures_of(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []
