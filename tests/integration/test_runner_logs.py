"""What a runner tells of an event that it cannot apply: where it is and what kind of fault it has, not what it says."""

import logging
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import generate_latest
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, DeadlockDetected

from domain.contracts import Contract
from infrastructure import metrics
from infrastructure.logs import JsonLines, TextLines
from projections.base import Quarantine
from tests.support.group import committed
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import SAMPLE, Sender, placed
from tests.support.projecting import projecting
from tests.support.tally import CREATE, Tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

SECRET = "s3cr3t-marker"
FORMATS = (TextLines(), JsonLines(), logging.Formatter("%(message)s %(args)s %(exc_text)s"))
"""Ours, and one as those have who embed us; it prints the text of an exception."""


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("tally")


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.handler.setLevel(logging.DEBUG)


def nothing_tells_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    assert caplog.records
    for record in caplog.records:
        lines = [each.format(record) for each in FORMATS]
        assert SECRET not in f"{lines} {vars(record)}"
    assert SECRET.encode() not in generate_latest()


def test_no_path_of_an_event_tells_its_payload(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, sender, deadlocks = topics("orders"), Sender(kafka.bootstrap), iter([True, True])

    def misbehave(contract: Contract, tx: Connection) -> Quarantine | None:
        match contract.key:
            case "fails":
                raise RuntimeError(f"customer {SECRET}")
            case "violates":
                raise CheckViolation(f"Failing row contains ({SECRET})")
            case "fails-in-sql":
                tx.execute("SELECT %s::int", (SECRET,))
            case "waits" if next(deadlocks, False):
                raise DeadlockDetected(f"Process 7 waits for {SECRET}")
            case "refused":
                return Quarantine(f"no such customer: {SECRET}")
        return None

    for key in ("fails", "violates", "fails-in-sql", "waits", "refused", "good", "good"):
        value = placed(key).model_copy(update={"customer_id": SECRET}).to_bytes()
        sender.send(topic, value, key.encode(), headers=(("note", SECRET.encode()),))
    sender.send(topic, SECRET.encode(), SECRET.encode(), headers=((SECRET, SECRET.encode()),))
    sender.send(topic, SAMPLE.replace(b"12900", b'"%s"' % SECRET.encode()), b"ord_782")
    sender.send(topic, SAMPLE.replace(b"12900", b"%s" % SECRET.encode()), b"ord_783")
    sender.send(topic, SAMPLE.replace(b'"schemaVersion":1', b'"schemaVersion":"%s"' % SECRET.encode()), b"ord_784")
    sender.send(topic, SAMPLE.replace(b"OrderPlaced", SECRET.encode()), b"ord_785")
    sender.send(topic, SAMPLE, SECRET.encode())
    sender.flush()
    with projecting(Tally(name, (topic,), misbehave), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 13, within=40)
    nothing_tells_the_secret(caplog)
    assert {each.getMessage() for each in caplog.records} >= {"handling failed", "put in quarantine", "the batch waits"}


def test_what_is_told_of_a_quarantined_event_is_enough_to_find_it(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics("orders")

    def refuse(contract: Contract, tx: Connection) -> Quarantine:
        return Quarantine("not for us")

    event = placed("ord_1")
    Sender(kafka.bootstrap).contracts(topic, event)
    with projecting(Tally(name, (topic,), refuse), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 1, within=40)
    [told] = [vars(each) for each in caplog.records if each.getMessage() == "put in quarantine"]
    fields = ("consumer", "event_id", "topic", "partition", "offset", "category")
    assert [told[field] for field in fields] == [name, event.event_id, topic, 0, 0, "refused"]


def test_a_database_that_refuses_a_password_does_not_make_it_known(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics("orders")
    Sender(kafka.bootstrap).contracts(topic, placed("ord_1"))
    with projecting(Tally(name, (topic,)), make_conninfo(inventory_dsn, password=SECRET), kafka.bootstrap):
        eventually(lambda: metrics.INBOX_RETRIES.labels(name, "OperationalError")._value.get() >= 2, within=40)
    nothing_tells_the_secret(caplog)
