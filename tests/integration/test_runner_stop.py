"""Real processes that are told to stop, or killed, at the worst moment."""

import signal
import time
from collections.abc import Iterator

import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from domain.orders.public_contracts import OrderPlaced
from tests.support.apache_kafka import RealKafka
from tests.support.group import committed
from tests.support.inventory import connected, count
from tests.support.kafka import Kafka, MakeTopic, create_topic
from tests.support.messages import Sender, placed
from tests.support.outages import frozen
from tests.support.processes import Program, Programs
from tests.support.proxy import TcpProxy
from tests.support.tally import CREATE, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka
GRACE = 10.0
"""Seconds, as the settings have it."""


class House:
    """One topic with some events in it, one database, and programs that work on them."""

    def __init__(self, programs: Programs, bootstrap: str, topic: str, dsn: str, database: Connection) -> None:
        self.bootstrap, self.topic, self.dsn, self.database = bootstrap, topic, dsn, database
        self.name = f"tally-{topic}"  # a group of its own: members that a test leaves behind would hold the next up
        self._programs = programs

    def send(self, many: int) -> list[str]:
        """The ids of as many new events."""
        events: list[OrderPlaced] = [placed(f"ord_{n}") for n in range(many)]
        Sender(self.bootstrap).contracts(self.topic, *events)
        return [event.event_id for event in events]

    def start(self, behaviour: str = "apply", dsn: str | None = None, session: int = 45) -> Program:
        """session: seconds after which a successor takes over from who did not leave the group."""
        env = {
            "NAME": self.name,
            "TOPIC": self.topic,
            "DSN": dsn or self.dsn,
            "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
            "COUNTERFOIL_SESSION_TIMEOUT": f"{session}",
            "COUNTERFOIL_HANDLER_ATTEMPTS": "100",
        }
        return self._programs.python("-m", "tests.support.projection_program", behaviour, env=env)

    @property
    def applied(self) -> list[str]:
        return tally(self.database, self.name)

    @property
    def committed(self) -> int | None:
        return committed(self.bootstrap, self.name, self.topic)


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def house(kafka: Kafka, topics: MakeTopic, programs: Programs, inventory_dsn: str, database: Connection) -> House:
    return House(programs, kafka.bootstrap, topics("orders"), inventory_dsn, database)


def stop(program: Program) -> None:
    """By SIGTERM; it must end well, in time, and by itself."""
    started = time.monotonic()
    program.send(signal.SIGTERM)
    assert program.wait(GRACE + 5.0) == 0
    assert time.monotonic() - started < GRACE
    assert program.output().endswith("ended\n")


def test_told_to_stop_in_a_handler_it_finishes_that_event_and_commits_its_offset(house: House) -> None:
    [event_id] = house.send(1)
    program = house.start("slowly")
    program.wait_for_line("handling ord_0")
    time.sleep(1.0)
    stop(program)
    assert (house.applied, house.committed) == ([event_id], 1)
    assert "handled ord_0" in program.output()


def test_told_to_stop_early_in_a_slow_batch_it_rolls_back_and_a_successor_applies_all(house: House) -> None:
    event_ids = house.send(20)
    program = house.start("slowly")
    program.wait_for_line("handling ord_0")
    stop(program)
    assert "handling ord_1" not in program.output()
    assert (house.applied, count(house.database, "processed_events")) == ([], 0)
    house.start()
    eventually(lambda: house.applied == event_ids, within=15)


def test_told_to_stop_while_the_database_works_it_is_cut_off(house: House) -> None:
    [event_id] = house.send(1)
    program = house.start("in-the-database")
    program.wait_for_line("handling ord_0")
    stop(program)
    assert house.applied == []
    house.start()  # and nothing is left in the database to wait for
    eventually(lambda: house.applied == [event_id], within=15)


def test_told_to_stop_between_two_attempts_it_leaves_the_event_to_a_successor(house: House) -> None:
    [event_id] = house.send(1)
    program = house.start("in-vain")
    program.wait_for_line("attempt=4")  # then it waits for seconds
    stop(program)
    assert (house.applied, count(house.database, "quarantined_events")) == ([], 0)
    house.start()
    eventually(lambda: house.applied == [event_id], within=15)


def test_told_to_stop_while_the_database_is_down_it_leaves_the_backoff(house: House) -> None:
    house.send(1)
    program = house.start(dsn=make_conninfo(house.dsn, port=1))
    program.wait_for_line("the batch waits")
    time.sleep(3.0)
    stop(program)


def test_told_to_stop_while_the_database_is_silent_it_does_not_wait_for_it(house: House) -> None:
    where = conninfo_to_dict(house.dsn)
    with TcpProxy(str(where["host"]), int(str(where["port"]))) as proxy:
        [first] = house.send(1)
        program = house.start(dsn=make_conninfo(house.dsn, port=proxy.port))
        eventually(lambda: house.applied == [first], within=20)
        proxy.blackhole()
        house.send(1)
        time.sleep(1.0)
        stop(program)


def test_told_to_stop_when_idle_it_leaves_the_group_so_that_a_successor_starts_at_once(house: House) -> None:
    [first] = house.send(1)
    program = house.start()
    eventually(lambda: house.applied == [first], within=20)
    stop(program)
    successor = house.start()
    successor.wait_for_line("running")
    [second] = house.send(1)
    eventually(lambda: house.applied == [first, second], within=10)


def test_told_to_stop_while_kafka_is_silent_it_does_not_wait_for_it(
    own_kafka: RealKafka, programs: Programs, inventory_dsn: str, database: Connection
) -> None:
    create_topic(own_kafka.bootstrap, "orders")
    house = House(programs, own_kafka.bootstrap, "orders", inventory_dsn, database)
    house.send(1)
    program = house.start("slowly")
    program.wait_for_line("handling ord_0")
    with frozen(own_kafka):  # before the offset of what is being handled
        program.wait_for_line("handled ord_0")
        stop(program)
    assert len(house.applied) == 1


def test_killed_after_the_commit_and_before_the_offset_the_repeat_has_no_effect(house: House) -> None:
    event_ids = house.send(50)
    program = house.start("stops-before-the-offset", session=6)
    program.wait_for_line("^applied")
    program.kill()
    assert house.applied
    assert house.committed is None
    house.start()
    eventually(lambda: house.committed == 50, within=30)
    assert house.applied == event_ids


def test_killed_in_a_handler_nothing_is_half_done_and_a_successor_applies_all(house: House) -> None:
    event_ids = house.send(3)
    program = house.start("slowly", session=6)
    program.wait_for_line("handled ord_0")
    program.kill()
    assert (house.applied, count(house.database, "processed_events")) == ([], 0)
    house.start()
    eventually(lambda: house.committed == 3, within=30)
    assert house.applied == event_ids


def test_frozen_in_a_transaction_for_so_long_that_it_lost_its_partition_the_effect_happens_once(house: House) -> None:
    event_ids = house.send(2)
    frozen = house.start("slowly", session=6)
    frozen.wait_for_line("handled ord_0")
    frozen.wait_for_line("handling ord_1")
    frozen.send(signal.SIGSTOP)
    successor = house.start(session=6)
    successor.wait_for_line("partitions assigned .*now=1", within=60)
    frozen.send(signal.SIGCONT)
    frozen.wait_for_line("partitions (lost|revoked)", within=60)
    eventually(lambda: house.committed == 2, within=60)
    assert house.applied == event_ids
    more = house.send(2)
    eventually(lambda: house.applied == event_ids + more, within=60)
    for program in (frozen, successor):
        stop(program)
