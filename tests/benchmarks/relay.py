"""From the store to acknowledged in Kafka, against a bare produce loop and against plain loops on the library.

The bare loop has the messages ready and does nothing but hand them over, with a delivery callback each, and
count what was acknowledged. The plain loops are what one writes first, with the same contracts validated by pydantic,
and once without that.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from domain.orders.application import Orders
from infrastructure.delivery import OutgoingMessage
from infrastructure.event_reader import EventReader
from infrastructure.event_store import store_env
from infrastructure.garbage import collect_rarely
from infrastructure.lease import Shard
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import connect
from infrastructure.publishers import publisher_for
from infrastructure.settings import Settings
from tests.benchmarks.append import LibraryOrders, library_env, library_order, our_order
from tests.benchmarks.harness import Comparison, Contender
from tests.benchmarks.relay_loops import TOPICS, bare_per_second, library_loop_per_second, unvalidated, validated
from tests.support.kafka import create_topic, running_kafka
from tests.support.outgoing import messages_of
from tests.support.relays import NEVER, relay_by_hand

EVENTS = 40_000
ONE_BY_ONE = 100
PAGE = 1_000
BATCH = 2_000
OUTBOX = load_outbox("domain.orders")


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    collect_rarely()  # as in the relay's command; it serves all contenders alike
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
                (
                    Contender("library, contracts validated", partial(looped, validated, PAGE, EVENTS)),
                    counterfoil,
                    Contender("library, nothing validated", partial(looped, unvalidated, PAGE, EVENTS)),
                ),
                ">= 3.5",
            )
            yield Comparison(
                "Store to acknowledged, beside one event at a time on the library",
                "events/s",
                (
                    Contender("library, contracts validated", partial(looped, validated, 1, ONE_BY_ONE)),
                    counterfoil,
                    Contender("library, nothing validated", partial(looped, unvalidated, 1, ONE_BY_ONE)),
                ),
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
    """All events, by a relay that has never run before. The clock starts behind its first batch, when the second one is
    mapped already: among so many batches that counts for little."""
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
        return [message for event in reader.read(0, EVENTS).events for message in messages_of(mapper, event)]
