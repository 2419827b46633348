"""Only code of the version that the tables belong to writes into them, and a swap waits for whoever is writing."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import Connection

from projections import runner, versions
from projections.versions import OtherVersion
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender, placed
from tests.support.projecting import projecting
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

NAME = "tally"


@pytest.fixture
def sessions(inventory_dsn: str) -> Iterator[list[Connection]]:
    with ExitStack() as cleanup:
        yield [cleanup.enter_context(connected(inventory_dsn)) for _ in range(3)]


def test_who_writes_first_says_the_version(sessions: list[Connection]) -> None:
    versions.hold(sessions[0], NAME, 3)
    with pytest.raises(OtherVersion, match="are of version 3, this code is of 2: stop this process"):
        versions.hold(sessions[1], NAME, 2)
    with pytest.raises(OtherVersion, match="this code is of 4: run `counterfoil rebuild`"):
        versions.hold(sessions[1], NAME, 4)


def test_a_swap_waits_for_writers_and_who_waited_for_the_swap_sees_its_version(sessions: list[Connection]) -> None:
    writing, swapping, late = sessions
    with writing.transaction():
        versions.hold(writing, NAME, 1)
        with pytest.raises(psycopg.errors.LockNotAvailable), versions.fence(swapping, NAME, 0.1):
            pass
    with ThreadPoolExecutor(1) as threads:
        with versions.fence(swapping, NAME, 5.0):
            waiting = threads.submit(versions.hold, late, NAME, 1)
            eventually(lambda: writing.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
            versions.write(swapping, NAME, 2)
        with pytest.raises(OtherVersion):
            waiting.result(20)


def test_who_stands_still_behind_the_fence_loses_it_and_writers_go_on(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "LONGEST_SILENCE", 0.2)
    _, swapping, late = sessions
    with pytest.raises(psycopg.OperationalError), versions.fence(swapping, NAME, 5.0):
        versions.hold(late, NAME, 1)
        swapping.execute("SELECT")


@pytest.mark.kafka
def test_a_runner_of_other_code_waits_outside_of_the_group_and_works_once_the_tables_are_its_own(
    sessions: list[Connection], inventory_dsn: str, kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(runner, "VERSION_SECONDS", 0.1)
    sessions[0].execute(CREATE)
    topic = topics("orders")
    newer = Tally(unique_name("tally"), (topic,))
    newer.version = 2
    versions.hold(sessions[0], newer.consumer_name, 1)
    Sender(kafka.bootstrap).contracts(topic, placed("ord_1", ("pen", 1)))
    with projecting(newer, inventory_dsn, kafka.bootstrap):
        eventually(lambda: "another version" in caplog.text, within=30)
        assert tally(sessions[0], newer.consumer_name) == []
        with versions.fence(sessions[1], newer.consumer_name, 5.0):
            versions.write(sessions[1], newer.consumer_name, 2)
        eventually(lambda: len(tally(sessions[0], newer.consumer_name)) == 1, within=60)
