"""What must be true at the end, counted anew from the stored events and from what is in the topics."""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from domain.event_mapper import EventMapper
from domain.orders.order import Order
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.event_reader import EventReader
from infrastructure.postgres import Connection, connect
from projections.inventory.projection import PROJECTION
from tests.chaos import parcels
from tests.chaos.house import House
from tests.chaos.intruder import MARK
from tests.support.published import Published, published
from tests.support.relays import repeats_are_identical, steps

ORDERS = (OrderPlaced.topic, OrderCancelled.topic)

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Recount:
    """What the stored events come to, with stock for all: an order is reserved unless it was cancelled."""

    statuses: dict[str, str] = field(default_factory=dict)
    lines: dict[tuple[str, str], int] = field(default_factory=dict)
    """Pieces by order and sku, of orders that are reserved."""

    @property
    def reserved(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for (_, sku), quantity in self.lines.items():
            counted[sku] += quantity
        return counted


def recount(store_dsn: str) -> Recount:
    counted, mapper, position = Recount(), EventMapper(), 0
    with closing(connect(store_dsn, application_name="chaos")) as store:
        reader = EventReader(store)
        while page := reader.read(position, 5_000).events:
            for recorded in page:
                event = mapper.to_domain_event(recorded)
                order_id = event.originator_id
                if isinstance(event, Order.Placed):
                    counted.statuses[order_id] = "reserved"
                    counted.lines |= {(order_id, line.sku): line.quantity for line in event.lines}
                elif isinstance(event, Order.Cancelled):
                    counted.statuses[order_id] = "cancelled"
                    for gone in [key for key in counted.lines if key[0] == order_id]:
                        del counted.lines[gone]
            position = page[-1].position
    return counted


@dataclass(frozen=True)
class Found:
    """What the inventory's database holds."""

    statuses: dict[str, str]
    lines: dict[tuple[str, str], int]
    reserved: Counter[str]
    processed: list[str]
    moves: dict[str, list[int]]
    """Steps of each parcel, in the order in which they were written down."""
    quarantined: dict[str, set[Place]]
    """By consumer."""


def look(inventory_dsn: str) -> Found:
    with closing(connect(inventory_dsn, application_name="chaos")) as inventory:
        moves: dict[str, list[int]] = {}
        for parcel, step in inventory.execute("SELECT parcel, step FROM moves ORDER BY place"):
            moves.setdefault(parcel, []).append(step)
        lines = inventory.execute("SELECT order_id, sku, quantity FROM reservation_lines").fetchall()
        reserved = inventory.execute("SELECT sku, reserved FROM stock WHERE reserved <> 0").fetchall()
        processed = "SELECT event_id FROM processed_events WHERE consumer_name = %s"
        return Found(
            statuses=dict(inventory.execute("SELECT order_id, status FROM reservations").fetchall()),
            lines={(order_id, sku): quantity for order_id, sku, quantity in lines},
            reserved=Counter(dict(reserved)),
            processed=[event_id for (event_id,) in inventory.execute(processed, (PROJECTION.consumer_name,))],
            moves=moves,
            quarantined={
                consumer: _quarantined(inventory, consumer) for consumer in (PROJECTION.consumer_name, parcels.CONSUMER)
            },
        )


def _quarantined(inventory: Connection, consumer: str) -> set[Place]:
    query = 'SELECT topic, partition, "offset" FROM quarantined_events WHERE consumer_name = %s'
    return set(inventory.execute(query, (consumer,)).fetchall())


def stored_steps(parcels_dsn: str) -> dict[str, list[int]]:
    query = "SELECT originator_id, max(originator_version) FROM stored_events GROUP BY 1"
    with closing(connect(parcels_dsn, application_name="chaos")) as store:
        return {parcel: list(range(1, last + 1)) for parcel, last in store.execute(query)}


def has_arrived(house: House) -> bool:
    """Whether there is nothing left to wait for; what is too much does not keep it waiting."""
    found, expected = look(house.inventory_dsn), recount(house.store_dsn)
    if found.statuses.keys() != expected.statuses.keys() or found.lines.keys() != expected.lines.keys():
        return False
    if sum(map(len, found.moves.values())) < sum(map(len, stored_steps(house.parcels_dsn).values())):
        return False
    return sum(map(len, found.quarantined.values())) >= sum(len(_poison(house, topic)) for topic in _topics())


def check(house: House) -> str:
    """Raises AssertionError. Returns what there was, in a line."""
    found, expected = look(house.inventory_dsn), recount(house.store_dsn)
    assert found.statuses == expected.statuses
    assert found.lines == expected.lines
    assert found.reserved == expected.reserved
    assert found.moves == stored_steps(house.parcels_dsn), "not each step once, or not in order"

    records = {topic: published(house.kafka.bootstrap, topic) for topic in _topics()}
    sound = {topic: [each for each in found if MARK not in each.headers] for topic, found in records.items()}
    event_ids = [_event_id(each) for topic in ORDERS for each in sound[topic]]
    assert sorted(found.processed) == sorted(set(event_ids))
    for topic in ORDERS:
        assert repeats_are_identical(sound[topic])
    for parcel, moved in found.moves.items():
        assert steps(sound[parcels.TOPIC], parcel) == moved, "first appearances in the topic are out of order"
    poison = {topic: _poison(house, topic) for topic in _topics()}
    assert found.quarantined[PROJECTION.consumer_name] == set().union(*(poison[topic] for topic in ORDERS))
    assert found.quarantined[parcels.CONSUMER] == poison[parcels.TOPIC]
    messages = sum(map(len, sound.values()))
    events = len(found.processed) + sum(map(len, found.moves.values()))
    return (
        f"{len(expected.statuses):,} orders, {events:,} events, {messages:,} messages, "
        f"{sum(map(len, poison.values())):,} poison"
    )


def _poison(house: House, topic: str) -> set[Place]:
    found = published(house.kafka.bootstrap, topic)
    return {(topic, each.partition, each.offset) for each in found if MARK in each.headers}


def _topics() -> tuple[str, ...]:
    return (*ORDERS, parcels.TOPIC)


def _event_id(message: Published) -> str:
    return dict(message.headers)["ce_id"].decode()
