"""A notification for each confirmed order, exactly one: duplicates, offsets that are gone, a process that is killed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg import Connection

from infrastructure.migrate import migrate
from projections import effects
from projections.effects.worker import Worker
from projections.notifications import MIGRATIONS
from projections.notifications.projection import Notifications
from projections.notifications.providers import open_providers
from tests.support.effects import numbers, working
from tests.support.group import committed, forget
from tests.support.inventory import apply, connected, count
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender, placed
from tests.support.processes import Programs
from tests.support.projecting import projecting
from tests.support.wait import eventually


class NotificationsOn(Notifications):
    """Under a name and on a topic of the test."""

    def __init__(self, consumer_name: str, topic: str) -> None:
        self.consumer_name, self._topic = consumer_name, topic

    @property
    def topics(self) -> tuple[str, ...]:
        return (self._topic,)


@pytest.fixture
def dsn(empty_dsn: str) -> str:
    migrate(empty_dsn, MIGRATIONS)
    return empty_dsn


@pytest.fixture
def house(dsn: str) -> Iterator[Connection]:
    with connected(dsn) as connection:
        yield connection


@pytest.mark.kafka
def test_each_order_is_told_once_though_it_is_delivered_twice_and_read_again_from_the_start(
    kafka: Kafka, topics: MakeTopic, dsn: str, house: Connection, unique_name: Callable[[str], str]
) -> None:
    name, topic = unique_name("notifications"), topics("orders")
    orders = [placed(f"ord_{n}") for n in range(20)]
    Sender(kafka.bootstrap).contracts(topic, *orders, *orders)
    projection, worker = NotificationsOn(name, topic), Worker(name, dsn, open_providers(dsn))
    with working([worker]):
        with projecting(projection, dsn, kafka.bootstrap):
            eventually(lambda: committed(kafka.bootstrap, name, topic) == 40, within=30)
        eventually(lambda: numbers(house) == (0, 20, 0), within=30)
        delivered = house.execute("SELECT * FROM delivered_notifications ORDER BY 1").fetchall()
        forget(kafka.bootstrap, name)
        with projecting(projection, dsn, kafka.bootstrap):
            eventually(lambda: committed(kafka.bootstrap, name, topic) == 40, within=30)
            assert numbers(house) == (0, 20, 0)
    assert house.execute("SELECT * FROM delivered_notifications ORDER BY 1").fetchall() == delivered
    assert len(delivered) == 20


def test_applying_all_events_again_for_a_rebuild_tells_nobody(dsn: str, house: Connection) -> None:
    """In a schema of its own with all tables anew, as a rebuild does it."""
    events = [placed(f"ord_{n}") for n in range(5)]
    apply(house, *events, projection=Notifications())
    house.execute("CREATE SCHEMA shadow")
    migrate(f"{dsn} options='-c search_path=shadow'", MIGRATIONS)
    with connected(f"{dsn} options='-c search_path=shadow'") as shadow, shadow.transaction():
        effects.silence(shadow)
        assert apply(shadow, *events, projection=Notifications()).applied == 5
        assert (count(shadow, "shadow.processed_events"), count(shadow, "shadow.outgoing_effects")) == (5, 0)
    assert numbers(house) == (5, 0, 0)


def test_a_worker_killed_between_the_providers_answer_and_its_note_tells_nobody_twice(
    dsn: str, house: Connection, programs: Programs, tmp_path: Path
) -> None:
    event = placed("ord_1")
    apply(house, event, projection=Notifications())
    first = programs.python("-m", "tests.support.effects_program", env={"DSN": dsn, "HELD_SECONDS": "1"})
    first.wait_for_line("^delivered evt_", within=30)
    first.kill()
    assert (numbers(house), count(house, "delivered_notifications")) == ((1, 0, 0), 1)
    with working([Worker(Notifications.consumer_name, dsn, open_providers(dsn))]):
        eventually(lambda: numbers(house) == (0, 1, 0), within=30)
    assert house.execute("SELECT attempts FROM outgoing_effects").fetchone() == (2,)
    assert count(house, "delivered_notifications") == 1
