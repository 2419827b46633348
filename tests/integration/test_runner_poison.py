"""Whatever bytes arrive: they are in quarantine as they came, and the next good message is applied at once."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from psycopg import Connection

from domain.contracts import Contract
from projections.base import Quarantine
from tests.support.group import committed
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import SAMPLE, Sender, cancelled, placed
from tests.support.projecting import projecting
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

AT_ONCE = 1.0
"""Seconds within which the message after a poison has to be applied."""

KEY = b"ord_782"

Message = tuple[bytes | None, bytes | None, str]
"""Key, value, and the category of its fault."""


def changed(old: bytes, new: bytes) -> bytes:
    assert SAMPLE.count(old) == 1
    return SAMPLE.replace(old, new)


POISON: dict[str, Message] = {
    "not text": (KEY, b"\xff\xfe", "not_json"),
    "cut off": (KEY, SAMPLE[:70], "not_json"),
    "a list": (KEY, b"[" + SAMPLE + b"]", "contract"),
    "empty": (KEY, b"", "not_json"),
    "no value": (KEY, None, "no_value"),
    "a byte-order mark": (KEY, b"\xef\xbb\xbf" + SAMPLE, "not_json"),
    "300 nested lists": (KEY, b"[" * 300 + b"]" * 300, "not_json"),
    "5 MB of digits": (KEY, b"9" * 5_000_000, "not_json"),
    "an amount of 5 MB of digits": (KEY, changed(b"12900", b"9" * 5_000_000), "not_json"),
    "NUL": (KEY, changed(b"cus_17", b"cus\\u0000"), "contract"),
    "a lone surrogate": (KEY, changed(b"cus_17", b"cus\\ud83d"), "not_json"),
    "a raw NUL": (KEY, changed(b"cus_17", b"cus\x00"), "not_json"),
    "a field twice": (KEY, changed(b'"USD"', b'"USD","currency":"EUR"'), "contract"),
    "an amount as text": (KEY, changed(b"12900", b'"12900"'), "contract"),
    "an amount with a fraction": (KEY, changed(b"12900", b"12900.0"), "contract"),
    "an amount that no double holds": (KEY, changed(b"12900", b"9007199254740993"), "contract"),
    "not a number": (KEY, changed(b"12900", b"NaN"), "not_json"),
    "an unknown version": (KEY, changed(b'"schemaVersion":1', b'"schemaVersion":2'), "version"),
    "a version as text": (KEY, changed(b'"schemaVersion":1', b'"schemaVersion":"1"'), "version"),
    "no version": (KEY, changed(b'"schemaVersion":1,', b""), "version"),
    "an unknown currency": (KEY, changed(b"USD", b"XXX"), "contract"),
    "a key that is not text": (b"\xa2", SAMPLE, "key"),
    "no key": (None, SAMPLE, "key"),
    "an empty key": (b"", SAMPLE, "key"),
    "the key of another order": (b"ord_783", SAMPLE, "key"),
}


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def topic(topics: MakeTopic) -> str:
    return topics("orders", config={"max.message.bytes": "10000000"})


def has_applied(database: Connection, name: str, many: int) -> bool:
    return len(tally(database, name)) == many


def parked(database: Connection) -> list[tuple[object, ...]]:
    query = 'SELECT "offset", key, value, category FROM quarantined_events ORDER BY "offset"'
    return database.execute(query).fetchall()


def test_each_poison_is_kept_as_it_came_and_the_next_message_is_applied_at_once(
    kafka: Kafka, topic: str, inventory_dsn: str, database: Connection, unique_name: Callable[[str], str]
) -> None:
    name, sender = unique_name("tally"), Sender(kafka.bootstrap)
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
        sender.contracts(topic, placed("ord_0"))
        eventually(lambda: len(tally(database, name)) == 1)
        late: dict[str, float] = {}
        for number, (what, (key, value, _)) in enumerate(POISON.items(), start=2):
            sender.send(topic, value, key)
            sender.contracts(topic, placed(f"ord_{number}"))
            started = time.monotonic()
            eventually(partial(has_applied, database, name, number))
            if time.monotonic() - started > AT_ONCE:
                late[what] = time.monotonic() - started
        assert not late
    assert parked(database) == [
        (2 * place + 1, key, value, category) for place, (key, value, category) in enumerate(POISON.values())
    ]
    assert committed(kafka.bootstrap, name, topic) == 2 * len(POISON) + 1


def test_poison_among_good_messages_costs_none_of_them(
    kafka: Kafka, topic: str, inventory_dsn: str, database: Connection, unique_name: Callable[[str], str]
) -> None:
    name, sender = unique_name("tally"), Sender(kafka.bootstrap)
    events: list[Contract] = [placed(f"ord_{n % 5}") for n in range(300)]
    for number, event in enumerate(events):
        if number % 50 == 25:
            sender.send(topic, b"\xff\xfe", KEY)
        sender.send(topic, event.to_bytes(), event.key.encode())
    sender.flush()
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 306, within=20)
    assert tally(database, name) == [event.event_id for event in events]
    assert len(parked(database)) == 6


def test_headers_are_kept_in_order_and_byte_for_byte(
    kafka: Kafka, topic: str, inventory_dsn: str, database: Connection, unique_name: Callable[[str], str]
) -> None:
    sender = Sender(kafka.bootstrap)
    sender.send(topic, b"poison", KEY, headers=(("b", b"\x00\xff"), ("a", None), ("b", b"")))
    sender.flush()
    with projecting(Tally(unique_name("tally"), (topic,)), inventory_dsn, kafka.bootstrap):
        eventually(lambda: parked(database), within=20)
    row = database.execute("SELECT topic, partition, header_names, header_values FROM quarantined_events").fetchone()
    assert row == (topic, 0, [b"b", b"a", b"b"], [b"\x00\xff", None, b""])


def test_a_new_field_survives_the_quarantine_byte_for_byte(
    kafka: Kafka, topic: str, inventory_dsn: str, database: Connection, unique_name: Callable[[str], str]
) -> None:
    value = changed(b'"USD"', b'"USD" , "promoCode":"SUMMER"')

    def refuse(contract: Contract, tx: Connection) -> Quarantine:
        return Quarantine("not for us")

    sender = Sender(kafka.bootstrap)
    sender.send(topic, value, KEY)
    sender.flush()
    with projecting(Tally(unique_name("tally"), (topic,), refuse), inventory_dsn, kafka.bootstrap):
        eventually(lambda: parked(database), within=20)
    assert parked(database) == [(0, KEY, value, "refused")]


def test_a_quarantine_of_thousands_does_not_stop_the_others(
    kafka: Kafka, topic: str, inventory_dsn: str, database: Connection, unique_name: Callable[[str], str]
) -> None:
    name, sender = unique_name("tally"), Sender(kafka.bootstrap)
    for number in range(2_000):
        sender.send(topic, b"\xff%d" % number, b"\xa2")
    sender.contracts(topic, cancelled("ord_1"))
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
        eventually(lambda: len(tally(database, name)) == 1, within=30)
    assert len(parked(database)) == 2_000
