"""A redrive: in order, under the ids they always had, up to the first that fails again; a crash only repeats."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from infrastructure import redrive
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.kafka_faults import Fault
from infrastructure.lease import Lease, LeaseLost, Shard, acquire
from infrastructure.outbox import Outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.outgoing_quarantine import park
from infrastructure.outgoing_records import discard, progress, records
from infrastructure.outgoing_redrives import ask
from infrastructure.parking import Parking
from infrastructure.postgres import Connection
from infrastructure.publisher import OutgoingMessage, PublishFailed
from infrastructure.redrive import Redriven, Redriver
from tests.support.parcels import Parcels, mended_outbox, parcel_outbox, parcels_in
from tests.support.relays import steps

RELAY = "parcels"
Answer = Callable[[Sequence[OutgoingMessage]], tuple[int, PublishFailed | None]]


def takes_all(messages: Sequence[OutgoingMessage]) -> tuple[int, None]:
    return len(messages), None


@dataclass
class House:
    """A relay's lease and quarantine, without the relay. published: what was acknowledged, call by call."""

    parcels: Parcels
    lease: Lease
    outbox: Outbox
    batch_size: int = 100
    batch_bytes: int = 16_000_000
    answer: Answer = takes_all
    calls: list[list[OutgoingMessage]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart(self.outbox)

    @property
    def connection(self) -> Connection:
        return self.parcels.connection

    def restart(self, outbox: Outbox) -> None:
        """With other code, perhaps."""
        mapper = MessageMapper(outbox, EventReader(self.connection).namespace())
        self.parking = Parking(Shard(RELAY), mapper)
        self.parking.load(self.connection, after=0)
        self.redriver = Redriver(self.lease, self.parking, self.batch_size, self.batch_bytes)

    def take_all(self) -> list[OutgoingMessage]:
        """As the relay does with all that is stored; what it would publish."""
        return self.take(self.stored())

    def take_last(self) -> list[OutgoingMessage]:
        return self.take(self.stored()[-1:])

    def take(self, events: list[RecordedEvent]) -> list[OutgoingMessage]:
        routed = [self.parking.route(event) for event in events]
        park(self.connection, self.lease, [aside for _, aside in routed if aside])
        return [message for messages, _ in routed for message in messages]

    def stored(self) -> list[RecordedEvent]:
        return list(EventReader(self.connection).read(0, 10_000).events)

    def turn(self) -> Redriven | None:
        """As when the relay has passed all that is stored; None when there is nothing to do."""
        position = self.stored()[-1].position
        asked = self.redriver.asked(self.connection, position)
        return self.redriver.turn(self.connection, position, asked, self._publish) if asked else None

    def turns(self) -> None:
        """Until there is nothing more to do."""
        while self.turn() is not None:
            pass

    def _publish(self, messages: Sequence[OutgoingMessage]) -> tuple[int, PublishFailed | None]:
        acknowledged, failure = self.answer(messages)
        self.calls.append(list(messages[:acknowledged]))
        return acknowledged, failure

    def published(self, parcel: str | None = None) -> list[int]:
        return steps([message for call in self.calls for message in call], parcel)

    def parked(self, parcel: str) -> list[int]:
        return [each.originator_version for each in records(self.connection, RELAY, originator_id=parcel, limit=999)]


@pytest.fixture
def house(store_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(redrive, "_EVERY", 0.0)
    with parcels_in(store_dsn) as parcels:
        acquired = acquire(parcels.connection, RELAY, 60)
        assert acquired is not None
        yield House(parcels, acquired[0], parcel_outbox("parcels"))


def test_after_the_cause_is_mended_all_of_a_key_goes_out_in_order_and_nothing_is_parked_any_more(house: House) -> None:
    house.parcels.move("x", note="!")
    house.parcels.move_all(["x", "y"], times=3)
    assert steps(house.take_all(), "y") == [1, 2, 3]

    house.restart(mended_outbox("parcels"))
    assert house.turn() is None, "nobody has asked for it"
    ask(house.connection, RELAY, "x")
    house.turns()

    assert house.published() == [1, 2, 3, 4]
    assert house.parked("x") == []
    house.parcels.move("x")
    assert steps(house.take_last()) == [5], "x is not parked any more"


def test_ids_are_those_that_the_events_always_had(house: House) -> None:
    house.parcels.move("x")
    house.parcels.move("x", note="!")
    house.parcels.move("x")
    house.restart(mended_outbox("parcels"))
    without_trouble = house.take_all()

    house.restart(house.outbox)
    first = house.take_all()
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)
    house.turns()

    assert first + house.calls[0] == without_trouble


def test_a_key_ends_at_the_first_that_fails_again_and_other_keys_go_on(house: House) -> None:
    for parcel in ("x", "z"):
        house.parcels.move(parcel, note="!")
        house.parcels.move(parcel)
    house.take_all()
    (culprit, *_) = records(house.connection, RELAY, originator_id="z", limit=9)
    discard(house.connection, RELAY, culprit.id, "no such parcel", "ann")

    ask(house.connection, RELAY)
    house.turns()

    assert (house.published("z"), house.published("x")) == ([2], [])
    assert (house.parked("z"), house.parked("x")) == ([], [1, 2])
    again, behind = records(house.connection, RELAY, originator_id="x", limit=9)
    assert (again.attempts, behind.attempts, again.asked) == (1, 0, False)
    assert again.tried_at is not None


def test_a_follower_that_is_refused_itself_is_a_culprit_from_then_on(house: House) -> None:
    for _ in range(3):
        house.parcels.move("x", note="!")
    house.parcels.move("y", note="!")
    house.take_all()
    house.restart(mended_outbox("parcels"))

    def refuses_the_second(messages: Sequence[OutgoingMessage]) -> tuple[int, PublishFailed | None]:
        if len(messages) > 1:
            return 1, PublishFailed(1, "MSG_SIZE_TOO_LARGE", Fault.MESSAGE, 1)
        return len(messages), None

    house.answer = refuses_the_second
    ask(house.connection, RELAY)
    house.turns()

    assert (house.published("x"), house.published("y")) == ([1], [1])
    culprit, follower = records(house.connection, RELAY, originator_id="x", limit=9)
    assert (culprit.kind, culprit.category, culprit.problem) == (
        "culprit",
        "refused",
        "Kafka refuses it: MSG_SIZE_TOO_LARGE",
    )
    assert (follower.originator_version, follower.attempts) == (3, 0)


def test_while_kafka_is_away_nothing_fails_again_and_it_stays_asked_for(house: House) -> None:
    house.parcels.move("x", note="!")
    house.parcels.move("x")
    house.take_all()
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)

    house.answer = lambda _: (1, PublishFailed(1, "_TRANSPORT", Fault.BROKER))
    redriven = house.turn()
    assert redriven is not None
    assert redriven.failure is not None
    assert house.parked("x") == [2], "what was acknowledged is released"

    house.answer = takes_all
    house.turns()
    assert (house.published(), house.parked("x")) == ([1, 2], [])
    assert all(each.attempts == 0 for each in records(house.connection, RELAY, closed=True, limit=9))


def test_one_that_would_fail_again_has_not_been_tried_while_those_before_it_are_not_acknowledged(house: House) -> None:
    house.parcels.move("x", note="!")
    house.parcels.write("x", "parcel.unheard_of", b"{}")
    house.take_all()
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)

    house.answer = lambda _: (0, PublishFailed(0, "_TRANSPORT", Fault.BROKER))
    house.turn()
    assert [each.attempts for each in records(house.connection, RELAY, limit=9)] == [0, 0]

    house.answer = takes_all
    house.turns()
    (again,) = records(house.connection, RELAY, limit=9)
    assert (house.published(), again.originator_version, again.attempts) == ([1], 2, 1)


def test_events_that_come_while_a_long_key_is_redriven_batch_by_batch_do_not_overtake(house: House) -> None:
    house.parcels.move("x", note="!")
    house.parcels.move_all(["x"], times=9)
    house.take_all()
    house.batch_size = 4
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY, "x")

    live: list[OutgoingMessage] = []
    for _ in range(3):
        house.turn()
        house.parcels.move("x")
        live += house.take_last()
        assert not live or not house.parked("x")
    house.turns()

    assert house.published() + steps(live) == list(range(1, 14))


def test_a_turn_takes_no_more_bytes_than_a_batch_but_always_one_event(house: House) -> None:
    for size in (5_000, 600, 600, 600):
        house.parcels.move("x", note="!" + "n" * size)
    house.take_all()
    house.batch_bytes = 1_000
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)
    house.turns()

    assert [steps(call) for call in house.calls] == [[1], [2, 3], [4]]


def test_one_killed_after_the_acknowledgement_publishes_again_and_loses_and_reorders_nothing(house: House) -> None:
    house.parcels.move("x", note="!")
    house.parcels.move_all(["x"], times=2)
    house.take_all()
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)

    class Killed(Exception):
        pass

    def is_killed(messages: Sequence[OutgoingMessage]) -> tuple[int, PublishFailed | None]:
        house.calls.append(list(messages))
        raise Killed

    house.answer = is_killed
    with pytest.raises(Killed):
        house.turn()
    house.answer = takes_all
    house.restart(mended_outbox("parcels"))
    house.turns()

    assert house.calls[0] == house.calls[1]
    assert (steps(house.calls[0]), house.parked("x")) == ([1, 2, 3], [])


def test_who_has_lost_the_lease_releases_nothing(house: House) -> None:
    house.parcels.move("x", note="!")
    house.take_all()
    house.restart(mended_outbox("parcels"))
    ask(house.connection, RELAY)
    house.connection.execute("UPDATE relay_checkpoints SET epoch = epoch + 1, owner = 'the successor'")

    with pytest.raises(LeaseLost):
        house.turn()

    assert house.parked("x") == [1]


def test_when_the_last_of_a_key_is_discarded_its_later_events_go_on_by_themselves(house: House) -> None:
    house.parcels.move("x", note="!")
    house.take_all()
    (entry,) = records(house.connection, RELAY, limit=9)

    assert discard(house.connection, RELAY, entry.id, "no such parcel", "ann")
    house.turns()

    house.parcels.move("x")
    assert steps(house.take_last()) == [2]
    (kept,) = records(house.connection, RELAY, closed=True, limit=9)
    assert (kept.discard_reason, kept.discarded_by, kept.released_at) == ("no such parcel", "ann", None)


def test_an_event_that_is_not_there_any_more_stays_in_quarantine_and_says_so(house: House) -> None:
    house.parcels.move("x", note="!")
    house.take_all()
    house.connection.execute("UPDATE outgoing_quarantine SET fingerprint = 'of another event'")
    _, since = ask(house.connection, RELAY)
    house.turns()

    (entry,) = records(house.connection, RELAY, limit=9)
    assert (entry.category, entry.attempts) == ("gone", 1)
    found = progress(house.connection, RELAY, "x", since)
    assert (found.pending, found.released, found.left) == (0, 0, 1)


def test_what_is_discarded_while_it_is_on_its_way_counts_as_released_because_it_is_published(house: House) -> None:
    house.parcels.move("x", note="!")
    house.take_all()
    house.restart(mended_outbox("parcels"))
    (entry,) = records(house.connection, RELAY, limit=9)
    ask(house.connection, RELAY)

    def is_discarded_meanwhile(messages: Sequence[OutgoingMessage]) -> tuple[int, None]:
        assert discard(house.connection, RELAY, entry.id, "too late", "ann")
        return len(messages), None

    house.answer = is_discarded_meanwhile
    house.turns()

    (kept,) = records(house.connection, RELAY, closed=True, limit=9)
    assert (kept.released_at is not None, kept.discard_reason) == (True, "too late")
    house.parcels.move("x")
    assert steps(house.take_last()) == [2]
