"""The account at the end, by event id: what is stored was published and processed, once, and the stock is right."""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from confluent_kafka import Consumer, TopicPartition

from counterfoil.demo.house import House
from domain.contracts import Contract
from domain.event_mapper import EventMapper
from domain.orders.order import Order
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.kafka_config import connection_config
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import Connection, connect
from infrastructure.record import Headers, Record
from infrastructure.settings import Settings
from projections.inventory.projection import PROJECTION

NAME = "counterfoil demo"
PAGE = 5_000
LONGEST_READ = 60.0
QUIET = 1.0
"""Seconds without a message after which a topic is taken as read to its end."""

PROCESSED = "SELECT event_id FROM processed_events WHERE consumer_name = %s"
QUARANTINED = "SELECT count(*) FROM quarantined_events"
STATUSES = "SELECT order_id, status FROM reservations"
RESERVED = "SELECT sku, reserved FROM stock"


@dataclass(frozen=True)
class Account:
    """Event ids of each station; messages counts repeats too. stock_differs: skus whose stock is not the recount."""

    stored: frozenset[str]
    published: frozenset[str]
    processed: frozenset[str]
    messages: int
    quarantined: int
    statuses: Counter[str]
    stock_differs: tuple[str, ...]

    @property
    def missing(self) -> int:
        return len(self.stored - (self.published & self.processed))

    @property
    def unknown(self) -> int:
        """Events that somebody has and nobody stored."""
        return len((self.published | self.processed) - self.stored)

    @property
    def balanced(self) -> bool:
        return not (self.missing or self.unknown or self.quarantined or self.stock_differs)


def draw_up(house: House) -> Account:
    stored, quantities = _stored(house.store_dsn)
    published, messages = _published(house.settings, stored)
    with closing(connect(house.inventory_dsn, application_name=NAME)) as inventory:
        statuses = dict(inventory.execute(STATUSES).fetchall())
        return Account(
            stored=stored,
            published=published,
            processed=frozenset(event_id for (event_id,) in inventory.execute(PROCESSED, (PROJECTION.consumer_name,))),
            messages=messages,
            quarantined=_one(inventory, QUARANTINED),
            statuses=Counter(statuses.values()),
            stock_differs=_recount(inventory, quantities, statuses),
        )


def _stored(dsn: str) -> tuple[frozenset[str], dict[str, Counter[str]]]:
    """The ids of all public events that the store's events become, and the quantities of each order by sku."""
    ids: set[str] = set()
    quantities: dict[str, Counter[str]] = {}
    with closing(connect(dsn, application_name=NAME)) as store:
        reader, mapper, position = EventReader(store), EventMapper(), 0
        outgoing = MessageMapper(load_outbox("domain.orders"), reader.namespace())
        while page := reader.read(position, PAGE).events:
            ids.update(contract.event_id for event in page for contract in outgoing.contracts(event))
            for event in page:
                _count_lines(mapper, event, quantities)
            position = page[-1].position
    return frozenset(ids), quantities


def _count_lines(mapper: EventMapper, recorded: RecordedEvent, quantities: dict[str, Counter[str]]) -> None:
    event = mapper.to_domain_event(recorded)
    if isinstance(event, Order.Placed):
        ordered = quantities.setdefault(event.originator_id, Counter())
        for line in event.lines:
            ordered[line.sku] += line.quantity


def _published(settings: Settings, expected: frozenset[str]) -> tuple[frozenset[str], int]:
    """Ids in the topics, and the number of messages. Reads from the start until all is there and nothing comes."""
    seen: Counter[str] = Counter()
    consumer = Consumer(
        connection_config(settings) | {"group.id": "counterfoil-demo-account", "enable.auto.commit": False}
    )
    try:
        consumer.assign(_from_the_start(consumer, load_outbox("domain.orders").contracts))
        until, heard = monotonic() + LONGEST_READ, monotonic()
        while monotonic() < until and not (seen.keys() >= expected and monotonic() - heard > QUIET):
            for message in consumer.consume(1_000, timeout=0.2):
                if message.error() is None:
                    heard = monotonic()
                    seen[_event_id(Record.of(message).headers)] += 1
    finally:
        consumer.close()
    return frozenset(seen), seen.total()


def _from_the_start(consumer: Consumer, contracts: tuple[type[Contract], ...]) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=10.0).topics
    return [TopicPartition(each.topic, number, 0) for each in contracts for number in known[each.topic].partitions]


def _recount(inventory: Connection, quantities: dict[str, Counter[str]], statuses: dict[str, str]) -> tuple[str, ...]:
    """Skus whose reserved stock is not what the stored orders with a reservation add up to."""
    counted: Counter[str] = Counter()
    for order_id, ordered in quantities.items():
        if statuses.get(order_id) == "reserved":
            counted += ordered
    return tuple(sku for sku, reserved in inventory.execute(RESERVED) if counted[sku] != reserved)


def _event_id(headers: Headers) -> str:
    return (dict(headers)["ce_id"] or b"").decode()


def _one(connection: Connection, statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    return int(row[0]) if row else 0
