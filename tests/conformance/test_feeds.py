"""What a projection is promised, whatever feeds it: Kafka and the event store make the same of the same orders."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from domain.orders.commands import CancelOrder
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.event_reader import EventReader
from infrastructure.migrate import Migrations, migrate
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import connect
from infrastructure.published import event_ids_of
from projections import inbox, order_summary, waiting
from projections.order_summary.projection import PROJECTION, OrderSummary
from projections.waiting import EventWatch, PositionWatch
from tests.support import projecting, summaries
from tests.support.feeding import feeding
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender
from tests.support.outgoing import messages_of
from tests.support.summaries import OUTBOXES, Summary, command, fold, orders_in, place_and_cancel, with_summary
from tests.support.wait import eventually


class Fed(ABC):
    """store: where orders are placed. dsn: where the summary is."""

    store: str
    dsn: str

    @abstractmethod
    def running(self, many: int = 1) -> AbstractContextManager[None]:
        """So many runners."""

    @abstractmethod
    def wait_for(self, order_id: str, version: int, position: int, timeout: float) -> bool:
        """For the order as of this version, stored at this position."""

    @abstractmethod
    def deliver(self) -> None:
        """What is stored is on its way to the projection."""

    def summary(self) -> Summary:
        with connect(self.dsn, application_name="test") as connection:
            return summaries.read(connection)


class ByStore(Fed):
    def __init__(self, store: str) -> None:
        self.store = self.dsn = with_summary(store)
        self._watch = PositionWatch(store, summaries.NAME)

    def running(self, many: int = 1) -> AbstractContextManager[None]:
        return feeding(self.store, PROJECTION, OUTBOXES, many, consume_batch_size=7)

    def deliver(self) -> None:
        """It is where it is read."""

    def wait_for(self, order_id: str, version: int, position: int, timeout: float) -> bool:
        return self._watch.wait_for(position, timeout)

    def close(self) -> None:
        self._watch.close()


class ByKafka(Fed):
    """Everything is sent twice, in batches that cut orders from their cancellations."""

    def __init__(self, store: str, dsn: str, kafka: Kafka, topics: MakeTopic, name: str) -> None:
        self.store, self.dsn, self._kafka = store, dsn, kafka
        tables = next(each for each in order_summary.MIGRATIONS if each.component == "order_summary")
        migrate(dsn, [inbox.MIGRATIONS, Migrations("order_summary", tables.folder)])
        self._topics = {OrderPlaced.topic: topics("placed", 3), OrderCancelled.topic: topics("cancelled", 3)}
        self._sender, self._sent = Sender(kafka.bootstrap), 0
        self._projection = _of_these_topics(tuple(self._topics.values()), name)
        self._watch = EventWatch(dsn, name)

    def running(self, many: int = 1) -> AbstractContextManager[None]:
        return projecting.projecting(self._projection, self.dsn, self._kafka.bootstrap, many, consume_batch_size=7)

    def deliver(self) -> None:
        with connect(self.store, application_name="test") as store:
            reader = EventReader(store)
            mapper = MessageMapper(OUTBOXES[0], reader.namespace())
            events = reader.read(self._sent, 100_000).events
        for _ in range(2):
            for event in events:
                for message in messages_of(mapper, event):
                    self._sender.send(self._topics[message.topic], message.value, message.key, headers=message.headers)
        self._sender.flush()
        self._sent = events[-1].position

    def wait_for(self, order_id: str, version: int, position: int, timeout: float) -> bool:
        with connect(self.store, application_name="test") as store:
            ids = event_ids_of(store, OUTBOXES[0], order_id, version)
        assert len(ids) == 1
        return all(self._watch.wait_for(event_id, timeout) for event_id in ids)

    def close(self) -> None:
        self._watch.close()


def _of_these_topics(names: tuple[str, ...], consumer: str) -> OrderSummary:
    class OfTheTest(OrderSummary):
        consumer_name = consumer
        topics = names  # type: ignore[assignment]

    return OfTheTest()


@pytest.fixture(params=["store", "kafka"])
def fed(
    request: pytest.FixtureRequest,
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    unique_name: Callable[[str], str],
) -> Iterator[Fed]:
    if request.param == "store":
        by: ByStore | ByKafka = ByStore(store_dsn)
    else:
        by = ByKafka(store_dsn, request.getfixturevalue("empty_dsn"), kafka, topics, unique_name("summary"))
    yield by
    by.close()


def test_the_read_model_is_the_fold_of_all_events_whatever_was_there_first(fed: Fed) -> None:
    place_and_cancel(fed.store, range(20))
    fed.deliver()
    with fed.running():
        place_and_cancel(fed.store, range(20, 40))
        fed.deliver()
        eventually(lambda: fed.summary() == fold(fed.store), within=60)


def test_two_runners_and_one_that_comes_later_make_the_same_as_one(fed: Fed) -> None:
    with fed.running(2):
        place_and_cancel(fed.store, range(30))
        fed.deliver()
        eventually(lambda: fed.summary()[0], within=60)
    place_and_cancel(fed.store, range(30, 60))
    fed.deliver()
    with fed.running():
        eventually(lambda: fed.summary() == fold(fed.store), within=60)


def test_who_waits_for_an_event_is_woken_by_a_hint_and_reads_what_it_has_changed(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL", 1_000.0)  # only a hint can wake anybody
    with orders_in(fed.store) as orders, fed.running():
        answer = orders.place(command("ord_1", price=500))
        fed.deliver()
        assert fed.wait_for("ord_1", answer.order.version, answer.position, timeout=60)
        assert fed.summary()[1] == {("cus_1", "EUR"): (1, 500, 0, 0)}

        answer = orders.cancel(CancelOrder(order_id="ord_1", reason="too late"))
        fed.deliver()
        assert fed.wait_for("ord_1", answer.order.version, answer.position, timeout=60)
        assert fed.summary()[0] == {"ord_1": (True, "cus_1", "EUR", 500, "too late")}


def test_who_waits_for_an_event_that_nobody_applies_is_told_so_in_time(fed: Fed) -> None:
    with orders_in(fed.store) as orders:
        answer = orders.place(command("ord_1"))
    assert not fed.wait_for("ord_1", 1, answer.position, timeout=0.7)
