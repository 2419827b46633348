"""The next batch is read and mapped while one is under way to Kafka: never more than that, and never past a doubt."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from domain.base import DomainEvent
from domain.contracts import Contract
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader
from infrastructure.kafka_faults import Fault
from infrastructure.outbox_relay import SET_BACK, Outcome, Relay
from infrastructure.postgres import connect
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed
from tests.integration.test_store_set_back import lose_the_tail
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.relays import NEVER, Recorder, checkpoint_of, relay_by_hand, steps

OUTBOX = parcel_outbox("parcels")


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


class Mapped:
    """How many events were mapped so far by its outbox."""

    def __init__(self) -> None:
        self.count = 0
        self.outbox = replace(OUTBOX, to_contracts=self._to_contracts)

    def _to_contracts(self, event: DomainEvent, event_id: Callable[[type[Contract]], str]) -> Sequence[Contract]:
        self.count += 1
        return OUTBOX.to_contracts(event, event_id)


def drain(relay: Relay) -> None:
    while relay.step(NEVER).outcome is not Outcome.IDLE:
        pass


# --- One under way, one prepared -----------------------------------------------------------------------


def test_the_next_batch_is_mapped_while_one_is_under_way_and_no_more_than_that(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a", "b"], times=25)
    mapped, seen = Mapped(), []

    def notes(messages: list[OutgoingMessage]) -> int:
        seen.append(mapped.count)
        return len(messages)

    with relay_by_hand(store_dsn, mapped.outbox, publisher := Recorder(answer=notes), batch_size=10) as relay:
        drain(relay)

    assert seen == [20, 30, 40, 50, 50], "each time one batch more than is under way"
    assert [len(call) for call in publisher.calls] == [10] * 5
    assert steps(publisher.messages, "a") == list(range(1, 26))


def test_the_next_batch_is_sent_only_when_the_checkpoint_covers_the_last_one(store_dsn: str, parcels: Parcels) -> None:
    parcels.move_all(["a"], times=30)
    found = []

    class Watched(Recorder):
        def send(self, messages, covers, turn):  # type: ignore[no-untyped-def]
            found.append(checkpoint_of(store_dsn).position)
            return super().send(messages, covers, turn)

    with relay_by_hand(store_dsn, OUTBOX, publisher := Watched(), batch_size=10) as relay:
        drain(relay)
    assert found == [0, 10, 20]
    assert [mark.position for mark in publisher.covers] == [10, 20, 30]


def test_a_tail_that_was_read_to_its_end_costs_no_read_ahead(store_dsn: str, parcels: Parcels) -> None:
    parcels.move("a")
    mapped = Mapped()
    with relay_by_hand(store_dsn, mapped.outbox, Recorder()) as relay:
        reads = relay._reader.read
        counted: list[int] = []
        relay._reader.read = lambda *asked: (counted.append(1), reads(*asked))[1]  # type: ignore[method-assign]
        assert relay.step(NEVER).outcome is Outcome.MOVED
    assert len(counted) == 1


# --- Bytes ---------------------------------------------------------------------------------------------


def test_batches_of_large_events_are_bounded_by_their_bytes(store_dsn: str, parcels: Parcels) -> None:
    for number in range(30):
        parcels.move(f"p{number % 3}", note="n" * 100_000)

    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder(), batch_bytes=500_000) as relay:
        drain(relay)

    assert max(sum(len(message.value) for message in call) for call in publisher.calls) < 700_000
    assert len(publisher.calls) >= 6
    assert all(steps(publisher.messages, key) == list(range(1, 11)) for key in ("p0", "p1", "p2"))


def test_an_event_larger_than_the_bound_goes_alone(store_dsn: str, parcels: Parcels) -> None:
    for _ in range(3):
        parcels.move("a", note="n" * 5_000)
    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder(), batch_bytes=1_000) as relay:
        drain(relay)
    assert [len(call) for call in publisher.calls] == [1, 1, 1]
    assert checkpoint_of(store_dsn).position == 3


def test_a_page_bounded_in_bytes_is_read_like_any_other(store_dsn: str, parcels: Parcels) -> None:
    for _ in range(10):
        parcels.move("a", note="n" * 1_000)
    with connect(store_dsn, application_name="test") as connection:
        reader = EventReader(connection)
        page = reader.read(3, 100, 2_500)
        assert [event.position for event in page.events] == [4, 5, 6], "until what was read before is large enough"
        assert page.anchor is not None
        assert page.anchor.position == 3
        assert len(reader.read(0, 100, 10_000_000).events) == 10
        assert len(reader.read(0, 4, 10_000_000).events) == 4


# --- Trouble -------------------------------------------------------------------------------------------


def test_what_was_prepared_is_forgotten_when_kafka_refuses_and_nothing_is_left_out_or_overtaken(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a", "b"], times=15)
    arrived: list[OutgoingMessage] = []

    def takes_some(messages: list[OutgoingMessage]) -> int:
        taken = {1: 3, 2: 5, 7: 0}.get(len(publisher.calls), len(messages))
        arrived.extend(messages[:taken])
        if taken < len(messages):
            raise PublishFailed(taken, "_TIMED_OUT", Fault.BROKER)
        return len(messages)

    publisher = Recorder(answer=takes_some)
    with relay_by_hand(store_dsn, OUTBOX, publisher, batch_size=5) as relay:
        drain(relay)
    assert steps(arrived, "a") == steps(arrived, "b") == list(range(1, 16))
    assert checkpoint_of(store_dsn).position == 30


def test_when_reading_ahead_fails_what_is_under_way_is_given_up(store_dsn: str, parcels: Parcels) -> None:
    parcels.move_all(["a"], times=20)
    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder(), batch_size=5) as relay:
        prepare = relay._preparer.batch

        def fails_ahead(after: int, *asked: object) -> object:
            if after == 5:
                raise ConnectionError
            return prepare(after, *asked)  # type: ignore[arg-type]

        relay._preparer.batch = fails_ahead  # type: ignore[method-assign,assignment]
        with pytest.raises(ConnectionError):
            relay.step(NEVER)
    assert publisher.dropped == 1
    assert checkpoint_of(store_dsn).position == 0


# --- The store was set back ------------------------------------------------------------------------------


def test_a_store_set_back_before_the_next_page_was_read_is_found_and_no_new_event_is_passed(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a"], times=20)

    class SetsBack(Recorder):
        def send(self, messages, covers, turn):  # type: ignore[no-untyped-def]
            if covers.position == 5:
                lose_the_tail(store_dsn, positions=17)  # 1, 2 and 3 are left
                parcels.move_all(["b"], times=10)
            return super().send(messages, covers, turn)

    with relay_by_hand(store_dsn, OUTBOX, publisher := SetsBack(), batch_size=5) as relay:
        assert relay.step(NEVER).outcome is Outcome.MOVED
        assert [relay.step(NEVER).reason for _ in range(3)] == [SET_BACK] * 3
    assert steps(publisher.messages, "b") == []
    assert checkpoint_of(store_dsn).position == 5


def test_a_store_set_back_behind_a_page_that_was_read_ahead_is_found_when_the_checkpoint_covers_it(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a"], times=20)

    def sets_back(messages: list[OutgoingMessage]) -> int:
        if publisher.covers[-1].position == 5:
            lose_the_tail(store_dsn, positions=12)  # of what was read ahead, 6 to 10, the last two are gone
            parcels.move_all(["b"], times=10)
        return len(messages)

    publisher = Recorder(answer=sets_back)
    with relay_by_hand(store_dsn, OUTBOX, publisher, batch_size=5) as relay:
        assert [relay.step(NEVER).outcome for _ in range(2)] == [Outcome.MOVED] * 2
        assert [relay.step(NEVER).reason for _ in range(3)] == [SET_BACK] * 3
    assert steps(publisher.messages, "b") == []


# --- Kafka knows better ------------------------------------------------------------------------------------


def mark_of(dsn: str, position: int) -> Mark:
    with connect(dsn, application_name="test") as connection:
        event = EventReader(connection).read(position, 1).anchor
        assert event is not None
        return Mark(position, 1, fingerprint(event))


def test_a_relay_goes_on_behind_what_kafka_says_is_published_and_brings_its_row_up_to_it(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a"], times=10)
    publisher = Recorder(resumed=mark_of(store_dsn, 6))
    with relay_by_hand(store_dsn, OUTBOX, publisher) as relay:
        relay.step(NEVER)
    assert steps(publisher.messages) == [7, 8, 9, 10]
    status = checkpoint_of(store_dsn)
    assert (status.position, status.anchor) == (10, mark_of(store_dsn, 10).anchor)


@pytest.mark.parametrize("known", ["another event there", "no event there"])
def test_when_kafka_has_been_told_of_what_the_store_does_not_have_the_relay_is_held(
    store_dsn: str, parcels: Parcels, known: str
) -> None:
    parcels.move_all(["a"], times=10)
    told = mark_of(store_dsn, 6)
    told = replace(told, anchor=b"x" * 32) if known == "another event there" else replace(told, position=60)
    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder(resumed=told)) as relay:
        assert [relay.step(NEVER).reason for _ in range(2)] == [SET_BACK] * 2
    assert publisher.messages == []
    assert checkpoint_of(store_dsn).position == 0
