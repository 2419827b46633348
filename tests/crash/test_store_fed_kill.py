"""A process that is fed by the store dies or freezes in the middle of a batch: nothing is lost, nothing doubled."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.parcel_counts import counts, with_counts
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs
from tests.support.wait import eventually

Start = Callable[..., Program]


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_counts(store_dsn)


@pytest.fixture
def parcels(dsn: str) -> Iterator[Parcels]:
    with parcels_in(dsn) as parcels:
        yield parcels


@pytest.fixture
def start(dsn: str, programs: Programs) -> Start:
    env = {"COUNTERFOIL_STORE_DSN": dsn, "COUNTERFOIL_RELAY_LEASE": "3", "COUNTERFOIL_CONSUME_BATCH_SIZE": "10"}
    return lambda *arguments: programs.python("-m", "tests.support.feed_program", *arguments, env=env)


def test_killed_in_the_middle_of_a_batch_the_next_one_begins_it_again(parcels: Parcels, start: Start) -> None:
    parcels.move_all(["a", "b"], 15)
    killed = start("--slow")
    killed.wait_for_line("handling b", within=60)
    killed.kill()
    successor = start()
    eventually(lambda: counts(parcels.connection) == {"a": 15, "b": 15}, within=60)
    assert successor.stop(within=20) == 0


def test_the_one_that_stands_by_takes_over_from_one_that_was_killed(parcels: Parcels, start: Start) -> None:
    parcels.move_all(["a", "b"], 15)
    killed = start("--slow")
    killed.wait_for_line("handling a", within=60)
    standby = start()
    standby.wait_for_line("state=standby", within=60)
    killed.kill()
    eventually(lambda: counts(parcels.connection) == {"a": 15, "b": 15}, within=60)


def test_the_one_that_stands_by_takes_over_from_one_that_is_frozen_and_whose_return_changes_nothing(
    parcels: Parcels, start: Start
) -> None:
    parcels.move("a")
    frozen = start()
    eventually(lambda: counts(parcels.connection) == {"a": 1}, within=60)
    standby = start()
    standby.wait_for_line("state=standby", within=60)
    frozen.send(signal.SIGSTOP)
    parcels.move_all(["a"], 4)
    eventually(lambda: counts(parcels.connection) == {"a": 5}, within=60)

    frozen.send(signal.SIGCONT)
    frozen.wait_for_line("state=waiting_for_store", within=60)
    parcels.move_all(["a"], 4)
    eventually(lambda: counts(parcels.connection) == {"a": 9}, within=60)
