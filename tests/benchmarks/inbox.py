"""The inbox against the plain way: for each message a transaction of its own, then a commit of its offset.

Every run works in a database of its own, as a new consumer group, on the same topic of a real Kafka. Measured is
the time from when the first message is there to the last committed offset: without joining the group, and without the
second that Kafka's client may sleep before it begins to fetch from partitions that were paused.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from threading import Event

from confluent_kafka import Consumer, TopicPartition
from psycopg import Connection
from psycopg.errors import CheckViolation

from domain.orders.public_contracts import OrderPlaced
from infrastructure import metrics
from infrastructure.garbage import collect_rarely
from infrastructure.migrate import migrate
from infrastructure.postgres import connect
from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber, consumer_config
from projections.base import Projection
from projections.decoding import Category, Faulty
from projections.inbox import claim
from projections.inventory import MIGRATIONS
from projections.inventory.queries import set_stock
from projections.quarantine import Parked, park
from projections.runner import Runner
from tests.benchmarks.dedupe import dedupe
from tests.benchmarks.harness import Comparison, Contender
from tests.benchmarks.inbox_handlers import CREATE, POISON, CountAll, CountEach, ReserveAll, ReserveEach
from tests.support.databases import PostgresServer
from tests.support.kafka import create_topic, running_kafka
from tests.support.messages import Sender, placed

MESSAGES = 20_000
BASELINE = 1_000
PARTITIONS = 3
POISON_EVERY = 500
SKUS = 100


Kind = Callable[[str, str], Projection]


@dataclass(frozen=True)
class Bench:
    server: PostgresServer
    template: str
    settings: Settings

    def plainly(self, kind: Kind, topic: str) -> float:
        """Messages per second."""
        name = f"plain-{secrets.token_hex(5)}"
        projection = kind(name, topic)
        with self._database() as connection, closing(Consumer(consumer_config(self.settings, name))) as consumer:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            message, started = consumer.poll(30.0), time.perf_counter()
            for _ in range(BASELINE):
                assert message is not None
                assert message.error() is None
                _apply(Record.of(message), projection, connection)
                consumer.commit(message, asynchronous=False)
                message = consumer.poll(30.0)
            return BASELINE / (time.perf_counter() - started)

    def ours(self, kind: Kind, topic: str) -> float:
        """Messages per second."""
        name = f"ours-{secrets.token_hex(5)}"
        projection, stop = kind(name, topic), Event()
        with self._database() as connection, Subscriber(self.settings, name, [topic]) as subscriber:
            runner = Runner(projection, connection.info.dsn + f" password={connection.info.password}", self.settings)
            while not subscriber.poll(1, 0.1):  # joins the group
                pass
            started = time.perf_counter()
            subscriber.rewind()
            while _settled(name) < MESSAGES:
                runner.step(subscriber, stop)
            return MESSAGES / (time.perf_counter() - started)

    def _database(self) -> "_Database":
        return _Database(self.server, self.template)


class _Database(ExitStack):
    """A copy of the template, for one run."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        super().__init__()
        self._server, self._template = server, template

    def __enter__(self) -> Connection:  # type: ignore[override]
        super().__enter__()
        name = self.enter_context(self._server.database("run", self._template))
        return self.enter_context(connect(self._server.dsn(name), application_name="benchmark"))


def _apply(record: Record, projection: Projection, connection: Connection) -> None:
    contract = OrderPlaced.from_bytes(record.value or b"")
    try:
        with connection.transaction():
            if claim(connection, projection.consumer_name, [contract.event_id]):
                projection.prepare((contract,), connection)
                projection.handle(contract, connection)
    except CheckViolation:
        with connection.transaction():
            park(connection, projection.consumer_name, [Parked(record, Faulty(Category.HANDLER, "refused"))])


def _settled(name: str) -> float:
    return sum(_value(metrics.INBOX_EVENTS.labels(name, outcome)) for outcome in ("applied", "quarantined"))


def _value(metric: object) -> float:
    return float(metric._value.get())  # type: ignore[attr-defined]


def comparisons(dsn: str, _dsn: str) -> Iterator[Comparison]:
    logging.getLogger("projections").setLevel(logging.ERROR)  # each poison is told of
    collect_rarely()  # as `counterfoil project` does
    server = PostgresServer(dsn)
    with running_kafka() as kafka, server.database("template") as template:
        migrate(server.dsn(template), MIGRATIONS)
        with connect(server.dsn(template), application_name="benchmark") as connection:
            for number in range(SKUS):
                set_stock(connection, f"sku-{number}", MESSAGES)
            connection.execute(CREATE)
        bench = Bench(server, template, Settings(kafka_bootstrap_servers=kafka.bootstrap, session_timeout=6.0))
        good, mixed = (_fill_topic(kafka.bootstrap, poison) for poison in (False, True))
        for title, plain, ours, topic, goal in (
            ("Inbox, a handler called per event", CountEach, CountEach, good, ">= 20"),
            ("Inbox, a batch handler", CountEach, CountAll, good, ">= 45"),
            ("Inbox, per event, one poison in 500", CountEach, CountEach, mixed, ">= 5"),
            ("Inbox, batch handler, one poison in 500", CountEach, CountAll, mixed, ">= 5"),
            ("Inbox, inventory as a batch handler", ReserveEach, ReserveAll, good, ""),
            ("Inbox, inventory, one poison in 500", ReserveEach, ReserveAll, mixed, ">= 5"),
        ):
            contenders = (
                Contender("transaction and offset per message", partial(bench.plainly, plain, topic)),
                Contender("counterfoil", partial(bench.ours, ours, topic)),
            )
            yield Comparison(title, "messages/s", contenders, goal)
        with ExitStack() as stack:
            yield dedupe(server, template, stack)


def _fill_topic(bootstrap: str, poison: bool) -> str:
    topic, sender = f"inbox-{secrets.token_hex(5)}", Sender(bootstrap)
    create_topic(bootstrap, topic, PARTITIONS)
    for number in range(MESSAGES):
        order_id = f"{POISON if poison and number % POISON_EVERY == 250 else 'ord'}_{number}"
        lines = [(f"sku-{(number * 7 + line * 31) % SKUS}", 1 + line) for line in range(1 + number % 2)]
        event = placed(order_id, *lines)
        sender.send(topic, event.to_bytes(), event.key.encode())
        if number % 10_000 == 0:
            sender.flush()
    sender.flush()
    return topic
