"""What is parked is released in order, through the same inbox, while consumers run."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from psycopg import Connection
from psycopg.errors import DeadlockDetected

from domain.contracts import Contract
from projections.base import NotYet, Quarantine
from projections.batch import Outcome, Readable, apply_batch
from projections.decoding import Category, Faulty
from projections.discarding import discard
from projections.entries import Entry, ParkedKey, entries, parked_keys
from projections.quarantine import Parked, park
from projections.redriving import Redrive, Redriver
from tests.support.inventory import apply, connected, count
from tests.support.messages import cancelled, placed, readable, record
from tests.support.tally import CREATE, Tally, tally
from tests.support.together import together
from tests.support.wait import eventually

KEY = ParkedKey(b"ord_1")


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def second(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        yield connection


def refuse(contract: Contract, tx: Connection) -> Quarantine:
    return Quarantine("as the test wants it")


def parked(connection: Connection, *events: Contract) -> list[Contract]:
    """The first is a culprit, those of its key its followers."""
    apply(connection, events[0], projection=Tally(then=refuse))
    apply(connection, *events[1:], projection=Tally())
    return list(events)


def redrive(connection: Connection, projection: Tally | None = None, key: ParkedKey = KEY) -> Redrive:
    return Redriver(projection or Tally(), connection).redrive(key, Event())


def left(connection: Connection) -> list[Entry]:
    return entries(connection, "tally")


def ids(events: list[Contract]) -> list[str]:
    return [event.event_id for event in events]


def fails_for(culprit: Contract, error: Exception, times: int = 1_000_000) -> Tally:
    called: list[str] = []

    def then(contract: Contract, tx: Connection) -> None:
        called.append(contract.event_id)
        if contract.event_id == culprit.event_id and called.count(culprit.event_id) <= times:
            raise error

    return Tally(then=then)


def test_a_key_is_released_in_order_over_all_topics_and_other_keys_stay(inbox: Connection) -> None:
    events = parked(inbox, placed("ord_1"), placed("ord_1"), cancelled("ord_1"), placed("ord_1"))
    parked(inbox, placed("ord_2"))
    assert redrive(inbox) == Redrive(released=4)
    assert tally(inbox) == ids(events)
    assert [each.key for each in left(inbox)] == [b"ord_2"]
    assert count(inbox, "processed_events") == 4


def test_it_stops_at_the_first_that_fails_again_and_says_why_anew(inbox: Connection) -> None:
    events = parked(inbox, placed("ord_1"), placed("ord_1"), placed("ord_1"))
    done = redrive(inbox, fails_for(events[1], RuntimeError("customer cus_17 lives in Testtown")))
    assert done.released == 1
    assert tally(inbox) == ids(events[:1])
    failed, behind = left(inbox)
    assert done.failed
    assert (failed.id, failed.kind, failed.category, failed.attempts) == (done.failed.entry_id, "culprit", "handler", 1)
    assert "RuntimeError" in failed.reason
    assert "cus_17" not in failed.reason
    assert (behind.event_id, behind.kind, behind.attempts) == (events[2].event_id, "follower", 0)


def test_what_its_handler_refuses_again_leaves_nothing_behind(inbox: Connection) -> None:
    parked(inbox, placed("ord_1"))
    for attempt in (1, 2):
        assert redrive(inbox, Tally(then=refuse)).released == 0
        assert [each.attempts for each in left(inbox)] == [attempt]
    assert (tally(inbox), count(inbox, "processed_events")) == ([], 0)


def test_what_cannot_be_applied_yet_ends_its_key_and_stays_as_it_is(inbox: Connection) -> None:
    parked(inbox, placed("ord_1"), placed("ord_1"))
    before = left(inbox)
    done = redrive(inbox, Tally(then=lambda contract, tx: NotYet("its price list is not there")))
    assert (done.released, done.failed and done.failed.entry_id) == (0, before[0].id)
    assert (left(inbox), tally(inbox)) == (before, [])
    assert redrive(inbox) == Redrive(released=2)


def test_bytes_that_newer_code_can_read_are_applied_and_others_stay(inbox: Connection) -> None:
    event, after = placed("ord_1"), placed("ord_1")
    came = record(event.to_bytes(), b"ord_1", topic=event.topic)
    apply_batch([Parked(came, Faulty(Category.VERSION, "as the test wants it"))], Tally(), inbox)
    apply_batch([Parked(record(b"\xff", b"ord_1"), Faulty(Category.NOT_JSON, "not JSON"))], Tally(), inbox)
    apply(inbox, after, projection=Tally())
    done = redrive(inbox)
    assert (done.released, tally(inbox)) == (1, [event.event_id])
    assert [each.category for each in left(inbox)] == ["not_json", "follower"]


def test_a_key_whose_culprit_was_discarded_is_released_too(inbox: Connection) -> None:
    events = parked(inbox, placed("ord_1"), placed("ord_1"), placed("ord_1"))
    assert discard(inbox, "tally", left(inbox)[0].id, "a test order", "somebody")
    assert redrive(inbox) == Redrive(released=2)
    assert tally(inbox) == ids(events[1:])


def test_an_event_that_was_applied_meanwhile_is_released_without_an_effect(inbox: Connection) -> None:
    event = placed("ord_1")
    apply(inbox, event, projection=Tally())
    park(inbox, "tally", [readable(event).parked(Category.HANDLER, "as the test wants it")])
    assert redrive(inbox) == Redrive(released=1)
    assert tally(inbox) == [event.event_id]


def test_a_type_that_the_projection_no_longer_handles_is_released(inbox: Connection) -> None:
    shipped = record(b'{"eventType":"OrderShipped"}', b"ord_1")
    apply_batch([Parked(shipped, Faulty(Category.VERSION, "as the test wants it"))], Tally(), inbox)
    assert redrive(inbox) == Redrive(released=1)


def test_a_record_without_a_key_is_redriven_alone(inbox: Connection) -> None:
    apply_batch([Parked(record(b"\xff", None), Faulty(Category.KEY, "none")) for _ in range(2)], Tally(), inbox)
    first, second = parked_keys(inbox, "tally")
    assert redrive(inbox, key=first).failed
    assert [each.attempts for each in left(inbox)] == [1, 0]
    assert second.entry_id == left(inbox)[1].id


def test_trouble_that_passes_is_waited_out_and_other_trouble_of_no_event_changes_nothing(inbox: Connection) -> None:
    [event] = parked(inbox, placed("ord_1"))
    with pytest.raises(DeadlockDetected):
        redrive(inbox, fails_for(event, DeadlockDetected("as the test wants it")))
    assert [(each.category, each.attempts) for each in left(inbox)] == [("refused", 0)]
    assert redrive(inbox, fails_for(event, DeadlockDetected("as the test wants it"), times=2)) == Redrive(released=1)
    assert tally(inbox) == [event.event_id]


def test_a_released_entry_is_a_record_without_its_bytes_and_its_event_a_duplicate_from_then_on(
    inbox: Connection,
) -> None:
    event = placed("ord_1")
    came = readable(event)
    apply_batch([came], Tally(then=refuse), inbox)
    redrive(inbox)
    [released] = entries(inbox, "tally", closed=True)
    assert (released.state, released.closed_at is not None) == ("released", True)
    assert inbox.execute("SELECT value, header_values FROM quarantined_events").fetchone() == (None, [])
    assert apply_batch([came], Tally(), inbox) == Outcome(0, 1, [])
    assert apply_batch([came], Tally(then=refuse), inbox) == Outcome(0, 1, [])
    assert tally(inbox) == [event.event_id]


def test_several_at_once_release_each_entry_once_and_in_order(inbox: Connection, inventory_dsn: str) -> None:
    events = parked(inbox, *(placed("ord_1") for _ in range(40)))
    with connected(inventory_dsn) as one, connected(inventory_dsn) as two:
        done = together([partial(redrive, connection) for connection in (one, two)])
    assert sum(each.released for each in done) == len(events)
    assert tally(inbox) == ids(events)


class Gate:
    """Holds a handler inside its transaction until it is opened."""

    def __init__(self, at: Contract) -> None:
        self.entered, self.open, self._at = Event(), Event(), at

    def __call__(self, contract: Contract, tx: Connection) -> Quarantine | None:
        if contract.event_id == self._at.event_id:
            self.entered.set()
            assert self.open.wait(20)
        return None


def is_waiting_for_a_lock(connection: Connection, pid: int) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return connection.execute(query, (pid,)).fetchone() == (True,)


def test_an_event_that_arrives_while_the_last_before_it_is_released_waits_for_that_and_is_applied(
    inbox: Connection, second: Connection, inventory_dsn: str
) -> None:
    """Parked instead, it would stay there with nothing before it; applied at once, it would overtake."""
    events = parked(inbox, placed("ord_1"), placed("ord_1"))
    live, gate = placed("ord_1"), Gate(events[1])
    with connected(inventory_dsn) as third, ThreadPoolExecutor() as threads:
        redriven = threads.submit(redrive, second, Tally(then=gate))
        assert gate.entered.wait(20)
        arrived = threads.submit(partial(apply, third, live, projection=Tally()))
        eventually(lambda: is_waiting_for_a_lock(inbox, third.info.backend_pid))
        gate.open.set()
        assert (redriven.result(20), arrived.result(20)) == (Redrive(released=2), Outcome(1, 0, []))
    assert tally(inbox) == [*ids(events), live.event_id]


def test_a_redrive_waits_for_an_event_that_is_just_being_parked_and_releases_it_too(
    inbox: Connection, second: Connection, inventory_dsn: str
) -> None:
    events = parked(inbox, placed("ord_1"))
    live, other = placed("ord_1"), placed("ord_2")
    gate = Gate(other)
    with connected(inventory_dsn) as third, ThreadPoolExecutor() as threads:
        batch: list[Readable | Parked] = [readable(live), readable(other)]
        parking = threads.submit(apply_batch, batch, Tally(then=gate), third)
        assert gate.entered.wait(20)
        redriven = threads.submit(redrive, second)
        eventually(lambda: is_waiting_for_a_lock(inbox, second.info.backend_pid))
        gate.open.set()
        assert (len(parking.result(20).parked), redriven.result(20)) == (1, Redrive(released=2))
    assert tally(inbox) == [other.event_id, events[0].event_id, live.event_id]
