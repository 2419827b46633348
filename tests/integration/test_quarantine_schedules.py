"""Consumers, a former owner of their partitions, repeats and redrives at random: each event once, each key in order."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Event, Lock
from typing import Any, cast

import pytest
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.subscriber import Subscriber
from projections.base import Quarantine
from projections.batch import Readable
from projections.database import Database
from projections.decoding import Category, Faulty
from projections.entries import parked_keys
from projections.quarantine import Parked, count
from projections.redriving import Redriver
from projections.settling import Settler
from tests.support.finished import Finished
from tests.support.inventory import connected
from tests.support.messages import cancelled, placed, readable
from tests.support.tally import CREATE, Tally, tally

KEYS, EVENTS = 6, 250
FIRST_OF_EACH_KEY = "SELECT DISTINCT ON (key) kind FROM quarantined_events WHERE state = 'parked' ORDER BY key, id"
Item = Readable | Parked


class Moody(Tally):
    """It refuses some events, or fails on them, until it has been told to take all."""

    def __init__(self, seed: int, poison: set[str]) -> None:
        super().__init__(then=self._answer)
        self._random, self._lock, self._poison = random.Random(seed), Lock(), poison
        self.takes_all = False
        self.patience = Event()

    def _answer(self, contract: Contract, tx: Connection) -> Quarantine | None:
        with self._lock:
            mood, pause = self._random.random(), self._random.choice((0.0, 0.0, 0.003))
        if pause:
            self.patience.wait(pause)
        if self.takes_all or contract.event_id not in self._poison or mood < 0.2:
            return None
        if mood < 0.5:
            raise RuntimeError("as the test wants it")
        return Quarantine("as the test wants it")


class Schedule:
    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn, self.random, self.stop = dsn, random.Random(seed), Event()
        self.topics = [self._stream(placed), self._stream(cancelled)]
        unreadable = {id(each) for topic in self.topics for each in topic if isinstance(each, Parked)}
        events = [each.contract for topic in self.topics for each in topic if isinstance(each, Readable)]
        assert unreadable
        self.projection = Moody(seed, {event.event_id for event in self.random.sample(events, k=len(events) // 12)})

    def _stream(self, make: Any) -> list[Item]:
        """Of one topic, in order. Some can be read only by newer code, which the redrive has."""
        items: list[Item] = []
        for _ in range(EVENTS):
            each = readable(make(f"ord_{self.random.randrange(KEYS)}"))
            broken = self.random.random() < 0.03
            items.append(Parked(each.record, Faulty(Category.VERSION, "an unknown version")) if broken else each)
        return items

    def consume(self, items: Sequence[Item], seed: int) -> None:
        """All of one topic, from batch to batch; now and then again from an earlier offset, or by two at once."""
        rng, position = random.Random(seed), 0
        with closing(Connected(self.dsn)) as ours, ThreadPoolExecutor(1) as former_owner:
            late: list[Future[None]] = []
            while position < len(items):
                batch = items[position : position + rng.randint(1, 15)]
                if rng.random() < 0.2:
                    late.append(former_owner.submit(self._apply_once, batch))
                ours.settle(batch, self.projection, self.stop)
                position += len(batch)
                if rng.random() < 0.15:
                    position = max(0, position - rng.randint(1, 30))
            for each in late:
                each.result(60)

    def _apply_once(self, batch: Sequence[Item]) -> None:
        with closing(Connected(self.dsn)) as its_own:
            its_own.settle(batch, self.projection, self.stop)

    def redrive(self, seed: int) -> None:
        """One alone: so what is first of its key between two redrives is a culprit, or it would wait for nothing."""
        rng = random.Random(seed)
        with connected(self.dsn) as connection:
            while not self.stop.is_set():
                assert all(kind == "culprit" for (kind,) in connection.execute(FIRST_OF_EACH_KEY))
                keys = parked_keys(connection, self.projection.consumer_name)
                if keys:
                    Redriver(self.projection, connection).redrive(rng.choice(keys), Event())
                self.stop.wait(rng.choice((0.0, 0.01)))


class Connected:
    def __init__(self, dsn: str) -> None:
        self._database, self._finished = Database(dsn, "test"), Finished()

    def settle(self, batch: Sequence[Item], projection: Moody, stop: Event) -> None:
        """Nothing here may deadlock: then it would be this test's error."""
        settler = Settler(projection, self._database, cast(Subscriber, self._finished), stop, attempts=1)
        settler.settle(batch)
        assert self._finished.offsets >= {each.record.offset for each in batch}

    def close(self) -> None:
        self._database.drop()


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.mark.parametrize("seed", [1, 2])
def test_at_the_end_every_event_was_applied_once_and_every_topic_and_key_in_order(
    inbox: Connection, inventory_dsn: str, seed: int
) -> None:
    schedule = Schedule(inventory_dsn, seed)
    with ThreadPoolExecutor() as threads:
        redriving = threads.submit(schedule.redrive, seed)
        consuming = [threads.submit(schedule.consume, items, seed + n) for n, items in enumerate(schedule.topics)]
        try:
            for each in consuming:
                each.result(120)
        finally:
            schedule.stop.set()
        redriving.result(60)
    schedule.projection.takes_all = True
    redriver = Redriver(schedule.projection, inbox)
    for key in parked_keys(inbox, "tally"):
        assert redriver.redrive(key, Event()).failed is None, key
    assert count(inbox, "tally").total == 0
    applied = tally(inbox)
    assert len(applied) == len(set(applied)) == 2 * EVENTS
    for items in schedule.topics:
        key_of = {event_id_of(each): each.record.key for each in items}
        of_this_topic = [event_id for event_id in applied if event_id in key_of]
        assert by_key(of_this_topic, key_of) == by_key(list(key_of), key_of)


def event_id_of(each: Item) -> str:
    return str(json.loads(each.record.value or b"")["eventId"])


def by_key(event_ids: Sequence[str], key_of: Mapping[str, bytes | None]) -> dict[bytes | None, list[str]]:
    """The event ids of each key, in the order given."""
    ids = defaultdict(list)
    for event_id in event_ids:
        ids[key_of[event_id]].append(event_id)
    return dict(ids)
