"""SIGTERM at any moment: the process ends well within its grace, its lease is free, and nothing is forgotten."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from tests.integration.test_store_set_back import lose_the_tail
from tests.support.apache_kafka import RealKafka
from tests.support.kafka import Kafka, create_topic
from tests.support.outages import breakable_kafka, frozen
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs
from tests.support.published import published
from tests.support.relays import checkpoint_of, relay_program, steps
from tests.support.wait import eventually

GRACE = 6.0
START = 20.0
SETTINGS = {"stop_grace": GRACE, "relay_lease": 10.0}


@pytest.fixture(scope="module")
def breakable() -> Iterator[RealKafka]:
    with breakable_kafka() as broker:
        yield broker


@pytest.fixture
def topic(breakable: RealKafka, unique_name: Callable[[str], str]) -> str:
    name = unique_name("parcels")
    create_topic(breakable.bootstrap, name, partitions=3)
    return name


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def relay(store_dsn: str, breakable: RealKafka, topic: str, programs: Programs) -> Program:
    """A relay that has published all there is."""
    kafka = Kafka(breakable.bootstrap, real=True)
    program = relay_program(programs, store_dsn, kafka, topic, **SETTINGS)
    program.wait_for_line("state=relaying", within=START)
    return program


def ends_in_time(program: Program) -> bool:
    return program.stop(within=GRACE) == 0


def lease_is_free(dsn: str) -> bool:
    return checkpoint_of(dsn).owner is None


def test_it_stops_in_time_while_it_is_idle(store_dsn: str, relay: Program) -> None:
    assert ends_in_time(relay)
    assert lease_is_free(store_dsn)


def test_it_stops_in_time_while_it_publishes_and_what_was_acknowledged_is_checkpointed(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, relay: Program
) -> None:
    parcels.move_all([f"p{number}" for number in range(50)], times=5)
    eventually(lambda: checkpoint_of(store_dsn).position > 0)

    assert ends_in_time(relay)

    assert lease_is_free(store_dsn)
    assert checkpoint_of(store_dsn).position == len(published(breakable.bootstrap, topic))


def test_it_stops_in_time_while_it_waits_for_an_acknowledgement_that_does_not_come(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, relay: Program
) -> None:
    parcels.move("a")
    eventually(lambda: checkpoint_of(store_dsn).position == 1)

    with frozen(breakable):
        parcels.move("a")
        before = checkpoint_of(store_dsn).beat_at
        eventually(lambda: checkpoint_of(store_dsn).beat_at > before)
        assert ends_in_time(relay)

    assert lease_is_free(store_dsn)
    assert checkpoint_of(store_dsn).position == 1


def test_it_stops_in_time_while_kafka_is_away(
    store_dsn: str, breakable: RealKafka, parcels: Parcels, relay: Program
) -> None:
    with ExitStack() as afterwards:
        breakable.kill()
        afterwards.callback(breakable.start)
        parcels.move("a")
        assert ends_in_time(relay)

    assert lease_is_free(store_dsn)
    assert checkpoint_of(store_dsn).position == 0


def test_it_stops_in_time_while_it_is_held(store_dsn: str, parcels: Parcels, relay: Program) -> None:
    parcels.move_all(["a"], times=2)
    eventually(lambda: checkpoint_of(store_dsn).position == 2)
    lose_the_tail(store_dsn, positions=1)
    relay.wait_for_line("state=held")

    assert ends_in_time(relay)
    assert lease_is_free(store_dsn)


def test_it_stops_in_time_while_it_stands_by(
    store_dsn: str, breakable: RealKafka, topic: str, programs: Programs, relay: Program
) -> None:
    second = relay_program(programs, store_dsn, Kafka(breakable.bootstrap, real=True), topic, **SETTINGS)
    second.wait_for_line("state=standby", within=START)

    assert ends_in_time(second)
    assert not lease_is_free(store_dsn)


def test_it_stops_in_time_while_the_database_is_away(
    own_postgres: EmbeddedPostgres, breakable: RealKafka, topic: str, programs: Programs
) -> None:
    migrate(own_postgres.dsn(), STORE_MIGRATIONS)
    relay = relay_program(programs, own_postgres.dsn(), Kafka(breakable.bootstrap, real=True), topic, **SETTINGS)
    relay.wait_for_line("state=relaying", within=START)
    own_postgres.kill()
    relay.wait_for_line("state=waiting_for_store")

    assert ends_in_time(relay)


def test_the_next_one_starts_at_once_where_the_last_one_stopped(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, programs: Programs, relay: Program
) -> None:
    parcels.move_all(["a"], times=3)
    eventually(lambda: checkpoint_of(store_dsn).position == 3)
    assert ends_in_time(relay)

    parcels.move_all(["a"], times=2)
    following = relay_program(programs, store_dsn, Kafka(breakable.bootstrap, real=True), topic, **SETTINGS)
    eventually(lambda: checkpoint_of(store_dsn).position == 5, within=START)
    assert "state=standby" not in following.output()
    assert steps(published(breakable.bootstrap, topic)) == [1, 2, 3, 4, 5]
    assert len(published(breakable.bootstrap, topic)) == 5
