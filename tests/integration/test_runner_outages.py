"""The database goes away and comes back. Nothing is skipped, nothing is quarantined, nobody restarts anything."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from counterfoil.embedded import EmbeddedPostgres
from infrastructure import metrics
from infrastructure.migrate import migrate
from projections.inventory import MIGRATIONS
from tests.support.group import committed
from tests.support.inventory import connected, count
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender, placed
from tests.support.projecting import projecting
from tests.support.proxy import TcpProxy
from tests.support.read_only import becomes_read_only
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka
BACK = 30.0
"""Seconds within which work goes on once the database is back."""


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("tally")


@pytest.fixture
def dsn(own_postgres: EmbeddedPostgres) -> Iterator[str]:
    dsn = own_postgres.create_database("inventory")
    migrate(dsn, MIGRATIONS)
    with connected(dsn) as connection:
        connection.execute(CREATE)
    yield dsn


def retries(name: str, error: str) -> float:
    return float(metrics.INBOX_RETRIES.labels(name, error)._value.get())


def applied(dsn: str, name: str) -> list[str]:
    with connected(dsn) as connection:
        return tally(connection, name)


def has_applied(database: Connection, name: str, many: int) -> bool:
    return len(tally(database, name)) >= many


def nothing_is_in_quarantine(dsn: str) -> bool:
    with connected(dsn) as connection:
        return count(connection, "quarantined_events") == 0


def test_after_a_crash_and_a_restart_of_the_database_work_goes_on_by_itself(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topics: MakeTopic, dsn: str, name: str
) -> None:
    topic, sender = topics("orders"), Sender(kafka.bootstrap)
    first, second = placed("ord_1"), placed("ord_1")
    with projecting(Tally(name, (topic,)), dsn, kafka.bootstrap, handler_attempts=1):
        sender.contracts(topic, first)
        eventually(lambda: applied(dsn, name) == [first.event_id], within=20)
        own_postgres.kill()
        sender.contracts(topic, second)
        eventually(lambda: retries(name, "OperationalError") >= 4, within=30)
        assert committed(kafka.bootstrap, name, topic) == 1
        own_postgres.start()
        eventually(lambda: applied(dsn, name) == [first.event_id, second.event_id], within=BACK)
    assert nothing_is_in_quarantine(dsn)


def test_a_session_that_has_become_read_only_is_given_up_until_somebody_takes_writes(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topics: MakeTopic, dsn: str, name: str
) -> None:
    topic, sender = topics("orders"), Sender(kafka.bootstrap)
    first, second = placed("ord_1"), placed("ord_1")
    with projecting(Tally(name, (topic,)), dsn, kafka.bootstrap, handler_attempts=1):
        sender.contracts(topic, first)
        eventually(lambda: applied(dsn, name) == [first.event_id], within=20)
        becomes_read_only(own_postgres.dsn(), True)
        sender.contracts(topic, second)
        eventually(lambda: retries(name, "25006") == 1, within=20)
        eventually(lambda: retries(name, "OperationalError") >= 2, within=20)
        assert committed(kafka.bootstrap, name, topic) == 1
        becomes_read_only(own_postgres.dsn(), False)
        eventually(lambda: applied(dsn, name) == [first.event_id, second.event_id], within=BACK)
    assert nothing_is_in_quarantine(dsn)


def test_a_lost_reply_to_the_commit_applies_the_event_once(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, name: str
) -> None:
    topic, event = topics("orders"), placed("ord_1")
    where = conninfo_to_dict(inventory_dsn)
    with (
        connected(inventory_dsn) as database,
        TcpProxy(str(where["host"]), int(str(where["port"]))) as proxy,
    ):
        database.execute(CREATE)
        lost = proxy.lose_reply_to(b"COMMIT")
        Sender(kafka.bootstrap).contracts(topic, event)
        with projecting(Tally(name, (topic,)), make_conninfo(inventory_dsn, port=proxy.port), kafka.bootstrap):
            eventually(lambda: committed(kafka.bootstrap, name, topic) == 1, within=30)
        assert lost.is_set()
        assert tally(database, name) == [event.event_id]
        assert metrics.INBOX_EVENTS.labels(name, "duplicate")._value.get() == 1


def test_connections_that_are_cut_again_and_again_cost_no_event_and_repeat_none(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, name: str
) -> None:
    topic, events = topics("orders"), [placed(f"ord_{n % 9}") for n in range(3_000)]
    where = conninfo_to_dict(inventory_dsn)
    with (
        connected(inventory_dsn) as database,
        TcpProxy(str(where["host"]), int(str(where["port"]))) as proxy,
    ):
        database.execute(CREATE)
        Sender(kafka.bootstrap).contracts(topic, *events)
        tally_here = Tally(name, (topic,))
        with projecting(
            tally_here, make_conninfo(inventory_dsn, port=proxy.port), kafka.bootstrap, consume_batch_size=100
        ):
            for done in range(300, 2_701, 300):
                eventually(partial(has_applied, database, name, done), within=30)
                proxy.cut()
                proxy.resume()
            eventually(lambda: committed(kafka.bootstrap, name, topic) == 3_000, within=30)
        assert tally(database, name) == [event.event_id for event in events]
        assert count(database, "quarantined_events") == 0
