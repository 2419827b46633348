"""A second producer: sends what was published once more, byte for byte, and poison, under keys of its own."""

import random
from collections import deque
from threading import Event

from confluent_kafka import Consumer, KafkaException, Producer

from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.record import Record
from tests.chaos.parcels import TOPIC

TOPICS = (OrderPlaced.topic, OrderCancelled.topic, TOPIC)
MARK = ("chaos", b"poison")
"""A header by which the account knows poison; whatever is judged by the inbox does not look at it."""

PAUSE = 0.1
REMEMBERED = 2_000

_PLACED = (
    b'{"eventId":"evt_%s","eventType":"OrderPlaced","schemaVersion":%d,"occurredAt":"2026-09-29T10:30:00Z",'
    b'"orderId":"%s","customerId":"cus_17","totalMinor":12900,"currency":"USD"}'
)


def intrude(bootstrap: str, seed: int, stop: Event) -> None:
    """Until told to stop. What it sends depends on the seed, and on what has been published by then."""
    dice = random.Random(f"intruder {seed}")
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"intruder-{seed}", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False, "log_level": 0, "topic.metadata.refresh.interval.ms": 2_000}
    )
    seen: deque[Record] = deque(maxlen=REMEMBERED)
    consumer.subscribe(list(TOPICS))
    number = 0
    while not stop.wait(PAUSE):
        seen.extend(_received(consumer))
        if seen:
            number += 1
            for record in dice.sample(seen, min(3, len(seen))):
                headers = list(record.headers)
                producer.produce(record.topic, record.value, record.key, record.partition, headers=headers)
            topic = dice.choice(TOPICS)
            key, value = poison(topic, number, dice)
            producer.produce(topic, value, key, headers=[MARK])
        producer.poll(0)
    producer.flush(30.0)
    consumer.close()


def poison(topic: str, number: int, dice: random.Random) -> tuple[bytes | None, bytes | None]:
    """Key and value; no key occurs twice, so that nothing waits behind it."""
    key = b"poison-%d" % number
    order = _PLACED % (key, 1, key)
    for_all: list[tuple[bytes | None, bytes | None]] = [
        (key, b"\xff\xfe"),
        (key, None),
        (key, order[:70]),
        (None, b"no key and no JSON"),
    ]
    of_orders: list[tuple[bytes | None, bytes | None]] = [
        (key, order),  # the inventory refuses what has no lines
        (key, _PLACED % (key, 2, key)),
        (key, order.replace(b"12900", b'"12900"')),
        (key, order.replace(b"cus_17", b"cus\\u0000")),
        (b"poison-other-%d" % number, order),
    ]
    return dice.choice(for_all if topic == TOPIC else for_all + of_orders)


def _received(consumer: Consumer) -> list[Record]:
    try:
        found = consumer.consume(200, timeout=0)
    except KafkaException:
        return []
    records = [Record.of(message) for message in found if message.error() is None]
    return [record for record in records if MARK not in record.headers]
