"""From Kafka: what is behind a culprit waits with it, other keys go on, and a full quarantine holds one partition."""

from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

import pytest
from psycopg import Connection

from domain.contracts import Contract
from infrastructure import metrics
from projections.base import Quarantine
from projections.discarding import discard
from projections.entries import ParkedKey, entries
from projections.quarantine import Count, count
from projections.redriving import Redriver
from tests.support.group import committed, forget
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender, cancelled, placed
from tests.support.projecting import projecting
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

KEY = ParkedKey(b"ord_1")


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("tally")


class Moody(Tally):
    """It refuses order 1, or fails on it, until it has learnt better."""

    def __init__(self, consumer_name: str, *topics: str, fails: bool = False) -> None:
        super().__init__(consumer_name, topics, self._answer)
        self._fails = fails
        self.has_learnt = False

    def _answer(self, contract: Contract, tx: Connection) -> Quarantine | None:
        if self.has_learnt or contract.key != "ord_1":
            return None
        if self._fails:
            raise RuntimeError("as the test wants it")
        return Quarantine("as the test wants it")


def has_parked(database: Connection, name: str, culprits: int, followers: int) -> bool:
    return count(database, name) == Count(culprits, followers)


@pytest.mark.parametrize("fails", [True, False], ids=["its handler fails", "its handler refuses it"])
def test_what_follows_by_another_topic_waits_too_and_is_redriven_while_the_runners_run_and_more_of_it_arrives(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str, fails: bool
) -> None:
    placements, cancellations = topics("placed", partitions=2), topics("cancelled", partitions=2)
    projection, sender = Moody(name, placements, cancellations, fails=fails), Sender(kafka.bootstrap)
    first: list[Contract] = [placed(f"ord_{n % 3}") for n in range(60)]
    last = cancelled("ord_1")
    with projecting(projection, inventory_dsn, kafka.bootstrap, many=2, handler_attempts=1):
        sender.contracts(placements, *first)
        eventually(partial(has_parked, database, name, 1, 19), within=30)
        sender.contracts(cancellations, last, cancelled("ord_2"))
        eventually(partial(has_parked, database, name, 1, 20), within=30)
        eventually(lambda: len(tally(database, name)) == 41, within=30)

        projection.has_learnt = True
        live = [placed("ord_1") for _ in range(40)]
        for event in live[:20]:
            sender.send(placements, event.to_bytes(), event.key.encode())
        with connected(inventory_dsn) as connection:
            assert Redriver(projection, connection).redrive(KEY, Event()).failed is None
        sender.contracts(placements, *live[20:])
        eventually(lambda: len(tally(database, name)) == 102, within=30)
    assert has_parked(database, name, 0, 0)
    ids = [event.event_id for event in [*first, *live] if event.key == "ord_1"]
    applied = tally(database, name)
    assert [each for each in applied if each in ids] == ids
    assert applied.count(last.event_id) == 1


def test_a_full_quarantine_makes_only_its_partition_wait_loudly_until_there_is_room(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, sender = topics("placed", partitions=2), Sender(kafka.bootstrap)
    projection = Moody(name, topic)
    stuck, behind = [placed("ord_1") for _ in range(4)], placed("ord_2")
    held = metrics.SUBSCRIBER_HELD.labels(name)
    with projecting(projection, inventory_dsn, kafka.bootstrap, quarantine_per_key=2):
        sender.contracts(topic, *stuck, behind, partition=0)
        eventually(partial(has_parked, database, name, 1, 1), within=30)
        eventually(lambda: held._value.get() == 1, within=30)
        sender.contracts(topic, placed("ord_3"), placed("ord_4"), partition=1)
        eventually(lambda: len(tally(database, name)) >= 2, within=30)
        assert behind.event_id not in tally(database, name)
        assert committed(kafka.bootstrap, name, topic) == 2
        assert "the quarantine is full: partitions wait" in caplog.messages

        discard(database, name, entries(database, name)[0].id, "a test order", "somebody")
        eventually(partial(has_parked, database, name, 0, 2), within=60)
        projection.has_learnt = True
        Redriver(projection, database).redrive(KEY, Event())
        eventually(lambda: behind.event_id in tally(database, name), within=60)
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 5, within=30)
        Redriver(projection, database).redrive(KEY, Event())
    ids = [event.event_id for event in stuck]
    assert [each for each in tally(database, name) if each in ids] == ids[1:]
    assert held._value.get() == 0


def test_what_was_released_or_discarded_stays_so_when_all_is_delivered_again(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender = topics("placed"), Sender(kafka.bootstrap)
    projection = Moody(name, topic)
    events = [placed("ord_0"), *(placed("ord_1") for _ in range(3))]
    sender.contracts(topic, *events)
    sender.send(topic, b"\xff", b"ord_1")
    sender.flush()
    with projecting(projection, inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 5, within=30)
    for position in (1, -1):  # what the handler refuses, and what nobody can read
        discard(database, name, entries(database, name)[position].id, "a test order", "somebody")
    projection.has_learnt = True
    assert Redriver(projection, database).redrive(KEY, Event()).released == 2
    expected = [event.event_id for n, event in enumerate(events) if n != 2]
    assert tally(database, name) == expected
    forget(kafka.bootstrap, name)
    with projecting(projection, inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 5, within=30)
    assert (tally(database, name), count(database, name).total) == (expected, 0)


def test_the_number_of_open_entries_is_a_metric_and_followers_are_counted_apart(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender = topics("placed"), Sender(kafka.bootstrap)
    sender.contracts(topic, *(placed("ord_1") for _ in range(3)))
    with projecting(Moody(name, topic), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 3, within=30)
    with projecting(Moody(name, topic), inventory_dsn, kafka.bootstrap):
        eventually(lambda: metrics.QUARANTINE_OPEN.labels(name, "culprit")._value.get() == 1, within=30)
    assert metrics.QUARANTINE_OPEN.labels(name, "follower")._value.get() == 2
