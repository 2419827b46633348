"""Processes that are started while PostgreSQL and Kafka are away wait in sight, and begin by themselves."""

from collections.abc import Iterator, Mapping
from urllib.request import urlopen

import pytest

from counterfoil.embedded import EmbeddedBroker, EmbeddedPostgres
from counterfoil.embedded.ports import free_port
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from projections import inventory, order_summary
from tests.acceptance.test_command_line import ORDER, in_environment
from tests.support.processes import Programs
from tests.support.wait import eventually

PROCESSES = (("relay", "domain.orders"), ("project", "projections.order_summary"), ("project", "projections.inventory"))


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Not started yet."""
    broker = EmbeddedBroker()
    yield broker
    broker.stop()


@pytest.fixture
def env(own_postgres: EmbeddedPostgres, broker: EmbeddedBroker) -> Mapping[str, str]:
    store, stock = own_postgres.create_database("store"), own_postgres.create_database("inventory")
    migrate(store, [*STORE_MIGRATIONS, *order_summary.MIGRATIONS])
    migrate(stock, inventory.MIGRATIONS)
    return {
        "COUNTERFOIL_STORE_DSN": store,
        "COUNTERFOIL_INVENTORY_DSN": stock,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "COUNTERFOIL_TOPIC_REPLICATION_FACTOR": "1",
        "COUNTERFOIL_SESSION_TIMEOUT": "6",
    }


def test_they_wait_for_their_servers_and_then_do_their_work(
    own_postgres: EmbeddedPostgres, broker: EmbeddedBroker, env: Mapping[str, str], programs: Programs
) -> None:
    own_postgres.kill()
    ports = [free_port("127.0.0.1") for _ in PROCESSES]
    started = [
        programs.counterfoil(*command, env={**env, "COUNTERFOIL_METRICS_PORT": str(port)})
        for command, port in zip(PROCESSES, ports, strict=True)
    ]
    for program, port in zip(started, ports, strict=True):
        program.wait_for_line("waiting for the database", within=60.0)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as page:
            assert b'"} 1.0' in b"".join(line for line in page if line.startswith(b"counterfoil_waiting_for_database{"))

    own_postgres.start()
    started[0].wait_for_line("state=waiting_for_kafka", within=60.0)
    broker.start()
    counterfoil = in_environment(env)
    assert counterfoil(*ORDER).returncode == 0
    eventually(lambda: counterfoil("stock", "show", "--order", "ord_1", "--wait", "20").returncode == 0, within=60.0)
    eventually(lambda: counterfoil("summary", "order", "ord_1").returncode == 0, within=60.0)
    assert all(program.running for program in started)


def test_one_that_waits_ends_when_it_is_told_to(programs: Programs) -> None:
    nobody = f"host=127.0.0.1 port={free_port('127.0.0.1')} dbname=store"
    relay = programs.counterfoil("relay", "domain.orders", env={"COUNTERFOIL_STORE_DSN": nobody})
    relay.wait_for_line("waiting for the database", within=60.0)
    assert relay.stop(within=30.0) == 0


def test_a_wrong_password_is_said_and_ends_them(store_dsn: str, programs: Programs) -> None:
    wrong = f"{store_dsn} password=s3cret"
    started = [programs.counterfoil(*command, env={"COUNTERFOIL_STORE_DSN": wrong}) for command in PROCESSES[:2]]
    for program in started:
        assert program.wait(within=60.0) == 1
        assert "Look at the user, the password" in program.output()
        assert "s3cret" not in program.output()
