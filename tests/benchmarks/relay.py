"""From the store to acknowledged in Kafka, against a bare produce loop and against plain loops on the library.

The bare loop has the messages ready and does nothing but hand them over, with a delivery callback each, and
count what was acknowledged. All producers are configured alike, and warm before the clock starts.
"""

import gc
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from psycopg import Connection

from domain.orders.application import Orders
from infrastructure.delivery import OutgoingMessage
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.lease import Shard
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import connect
from infrastructure.producer import producer_config
from infrastructure.publishers import publisher_for
from infrastructure.settings import Settings
from tests.benchmarks.append import LibraryOrders, library_env, library_order, our_order
from tests.benchmarks.harness import Comparison, Contender
from tests.support.kafka import create_topic, running_kafka
from tests.support.relays import NEVER, relay_by_hand

EVENTS = 10_000
ONE_BY_ONE = 100
PAGE = 1_000
BATCH = 2_000
TOPICS = ("orders.placed.v1", "orders.cancelled.v1")
OUTBOX = load_outbox("domain.orders")

CHECKPOINT = "UPDATE loop_checkpoint SET position = %s"


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    gc.set_threshold(100_000)  # as in the relay's command; it serves all contenders alike
    with running_kafka() as kafka:
        for topic in TOPICS:
            create_topic(kafka.bootstrap, topic, partitions=6)
        with (
            closing(Orders(env=store_env(store_dsn))) as ours,
            closing(LibraryOrders(env=library_env(library_dsn))) as library,
            connect(library_dsn, application_name="benchmark") as connection,
        ):
            for _ in range(EVENTS // PAGE):
                ours.save(*(our_order() for _ in range(PAGE)))
                library.save(*(library_order() for _ in range(PAGE)))
            connection.execute("CREATE TABLE loop_checkpoint AS SELECT 0::bigint AS position")
            settings = Settings(kafka_bootstrap_servers=kafka.bootstrap)
            relayed = partial(relayed_per_second, store_dsn, settings)
            looped = partial(library_loop_per_second, library, connection, settings)
            bare = partial(bare_per_second, mapped(store_dsn), settings)
            counterfoil = Contender("counterfoil", partial(relayed, "at-least-once", BATCH))
            yield Comparison(
                f"Store to acknowledged, batches of {BATCH:,}, beside a bare produce loop of the same messages",
                "events/s",
                (Contender("bare produce loop", bare), counterfoil),
                ">= 0.25",
            )
            yield Comparison(
                f"Store to acknowledged, beside a plain loop on the library in batches of {PAGE:,}",
                "events/s",
                (Contender("library", partial(looped, PAGE, EVENTS)), counterfoil),
                ">= 3.5",
            )
            yield Comparison(
                "Store to acknowledged, beside one event at a time on the library",
                "events/s",
                (Contender("library, one by one", partial(looped, 1, ONE_BY_ONE)), counterfoil),
                ">= 100",
            )
            yield Comparison(
                f"Effectively once, batches of {BATCH:,}, beside at least once",
                "events/s",
                (
                    Contender("at least once", partial(relayed, "at-least-once", BATCH)),
                    Contender("effectively once", partial(relayed, "effectively-once", BATCH)),
                    Contender("at least once, batches of 500", partial(relayed, "at-least-once", 500)),
                    Contender("effectively once, batches of 500", partial(relayed, "effectively-once", 500)),
                ),
                ">= 0.7",
            )


def relayed_per_second(dsn: str, settings: Settings, delivery: str, batch: int) -> float:
    """All events, by a relay that has never run before. The clock starts behind its first batch."""
    outbox = replace(OUTBOX, name=f"bench-{secrets.token_hex(4)}")
    settings = settings.model_copy(update={"relay_delivery": delivery})
    with connect(dsn, application_name="benchmark") as connection:
        namespace = EventReader(connection).namespace()
    with (
        closing(publisher_for(settings, namespace, outbox, Shard(outbox.name))) as publisher,
        relay_by_hand(dsn, outbox, publisher, batch_size=batch) as relay,
    ):
        while relay.position == 0:
            relay.step(NEVER)
        before, started = relay.position, time.perf_counter()
        while relay.position < EVENTS:
            relay.step(NEVER)
        return (EVENTS - before) / (time.perf_counter() - started)


def mapped(dsn: str) -> Sequence[OutgoingMessage]:
    with connect(dsn, application_name="benchmark") as connection:
        reader = EventReader(connection)
        mapper = MessageMapper(OUTBOX, reader.namespace())
        return [message for event in reader.read(0, EVENTS).events for message in mapper.messages(event)]


class Acknowledged:
    """Counts what arrived, as whoever must not lose anything has to."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, error: KafkaError | None, _message: Message) -> None:
        assert error is None
        self.count += 1


def warm_producer(settings: Settings) -> Producer:
    producer = Producer(producer_config(settings))
    for topic in TOPICS:
        producer.produce(topic, b"warm", b"warm")
    producer.flush(30)
    return producer


def bare_per_second(messages: Sequence[OutgoingMessage], settings: Settings) -> float:
    producer, acknowledged = warm_producer(settings), Acknowledged()
    ready = [(m.topic, m.value, m.key, list(m.headers)) for m in messages]
    started = time.perf_counter()
    for count, (topic, value, key, headers) in enumerate(ready):
        producer.produce(topic, value, key, headers=headers, on_delivery=acknowledged.report)
        if count % PAGE == 0:
            producer.poll(0)
    producer.flush(60)
    elapsed = time.perf_counter() - started
    assert acknowledged.count == len(messages)
    return len(messages) / elapsed


def library_loop_per_second(
    application: LibraryOrders, connection: Connection[Any], settings: Settings, page: int, events: int
) -> float:
    """What one writes first: read a page, map, produce, flush, remember the position."""
    producer, acknowledged = warm_producer(settings), Acknowledged()
    position, done, started = 0, 0, time.perf_counter()
    while done < events:
        notifications = application.recorder.select_notifications(position, page, inclusive_of_start=False)
        for notification in notifications:
            event: Any = application.mapper.to_domain_event(notification)
            value, headers = as_message(event)
            key = str(event.originator_id).encode()
            producer.produce(TOPICS[0], value, key, headers=headers, on_delivery=acknowledged.report)
        producer.flush(60)
        done, position = done + len(notifications), notifications[-1].id
        assert acknowledged.count == done
        connection.execute(CHECKPOINT, (position,))
    return done / (time.perf_counter() - started)


def as_message(event: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The same fields and headers as ours, without any validation."""
    key, time_text = str(event.originator_id), event.timestamp.isoformat()
    contract = {
        "eventId": f"evt_{event.originator_id.hex}{event.originator_version}",
        "eventType": "OrderPlaced",
        "schemaVersion": 1,
        "occurredAt": time_text,
        "orderId": key,
        "customerId": event.customer_id,
        "totalMinor": sum(line["quantity"] * line["unit_price_minor"] for line in event.lines),
        "currency": event.currency,
        "lines": [{"sku": line["sku"], "quantity": line["quantity"]} for line in event.lines],
    }
    headers: list[tuple[str, bytes]] = [
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/counterfoil/7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11"),
        ("ce_type", b"OrderPlaced.v1"),
        ("ce_dataschema", b"urn:counterfoil:contract:OrderPlaced:1"),
        ("ce_id", str(contract["eventId"]).encode()),
        ("ce_time", time_text.encode()),
        ("ce_subject", key.encode()),
        ("ce_partitionkey", key.encode()),
        ("ce_sequence", b"%d" % event.originator_version),
    ]
    return json.dumps(contract, separators=(",", ":")).encode(), headers
