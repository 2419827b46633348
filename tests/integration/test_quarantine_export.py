"""The dead-letter topic is a copy of what is parked; the table stays the truth."""

import random
import struct
from collections.abc import Iterator
from threading import Event
from typing import cast

import pytest
from confluent_kafka import Consumer, Message
from psycopg import Connection

from infrastructure.settings import Settings
from projections.batch import apply_batch
from projections.decoding import Category, Faulty
from projections.entries import entries
from projections.quarantine import Parked
from projections.quarantine_export import ExportFailed, export
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import placed, readable, record
from tests.support.tally import Tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        yield connection


def messages_in(kafka: Kafka, topic: str, many: int) -> list[Message]:
    config = {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    consumer, found = Consumer(config), list[Message]()
    consumer.subscribe([topic])

    def enough() -> bool:
        found.extend(each for each in consumer.consume(many, timeout=0.1) if each.error() is None)
        return len(found) >= many

    try:
        eventually(enough, within=30)
    finally:
        consumer.close()
    return found


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], message.headers())


def park_some(inbox: Connection) -> None:
    came = record(b"\xff\x00", b"ord_1", headers=(("trace", b"\xfe"), ("trace", None)))
    culprit = Parked(came, Faulty(Category.NOT_JSON, "not JSON"))
    apply_batch([culprit, readable(placed("ord_1"))], Tally(), inbox)


def test_each_entry_is_exported_once_byte_for_byte_with_where_it_came_from_and_why(
    kafka: Kafka, topics: MakeTopic, inbox: Connection
) -> None:
    topic, settings = topics("dead"), Settings(kafka_bootstrap_servers=kafka.bootstrap)
    park_some(inbox)
    assert export(settings, inbox, "tally", topic, Event()) == 2
    assert export(settings, inbox, "tally", topic, Event()) == 0
    culprit, follower = messages_in(kafka, topic, 2)
    [entry, behind] = entries(inbox, "tally")
    assert (culprit.key(), culprit.value()) == (b"ord_1", b"\xff\x00")
    headers = headers_of(culprit)
    assert headers[:2] == [("trace", b"\xfe"), ("trace", None)]
    assert dict(headers[2:]) == {
        "kafka_dlt-original-topic": b"orders",
        "kafka_dlt-original-partition": b"\0\0\0\0",
        "kafka_dlt-original-offset": struct.pack(">q", entry.offset),
        "kafka_dlt-original-timestamp": struct.pack(">q", 1_790_000_000_000),
        "kafka_dlt-original-consumer-group": b"tally",
        "kafka_dlt-exception-fqcn": b"not_json",
        "kafka_dlt-exception-message": b"not JSON",
    }
    assert dict(headers_of(follower))["kafka_dlt-exception-fqcn"] == b"follower"
    assert {each.state for each in (entry, behind)} == {"parked"}
    assert None not in (entry.exported_at, behind.exported_at)


def test_what_kafka_did_not_take_is_not_marked_and_is_said(kafka: Kafka, inbox: Connection, topics: MakeTopic) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka.bootstrap)
    topic = topics("dead", config={"max.message.bytes": "1000"})
    park_some(inbox)
    large = Parked(record(random.Random(1).randbytes(20_000), b"ord_2"), Faulty(Category.NOT_JSON, "not JSON"))
    apply_batch([large], Tally(), inbox)
    with pytest.raises(ExportFailed) as failed:
        export(settings, inbox, "tally", topic, Event())
    assert failed.value.error == "MSG_SIZE_TOO_LARGE"
    assert [each.exported_at for each in entries(inbox, "tally")][2] is None
