"""No event overtakes an earlier one of its key that is in quarantine, whichever topic it comes by."""

from collections.abc import Iterator
from threading import Event
from typing import cast

import pytest
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.subscriber import Subscriber
from projections.base import Quarantine
from projections.batch import Limits, Outcome, Readable, apply_batch
from projections.database import Database
from projections.decoding import Category, Faulty
from projections.discarding import discard
from projections.entries import entries
from projections.quarantine import Count, Parked, count
from projections.settling import Settler
from tests.support.finished import Finished
from tests.support.inventory import apply, connected
from tests.support.messages import cancelled, placed, readable, record
from tests.support.tally import CREATE, Tally, tally


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


def poison(key: bytes | None, value: bytes = b"\xff") -> Parked:
    return Parked(record(value, key), Faulty(Category.NOT_JSON, "as the test wants it"))


class Refusing(Tally):
    """It refuses these events, by their ids."""

    def __init__(self, *refused: Contract, consumer_name: str = "tally") -> None:
        super().__init__(consumer_name, then=self._answer)
        self.refused = {contract.event_id for contract in refused}

    def _answer(self, contract: Contract, tx: Connection) -> Quarantine | None:
        return Quarantine("as the test wants it") if contract.event_id in self.refused else None


def parked(connection: Connection) -> list[tuple[str | None, str]]:
    return [(each.event_id, each.kind) for each in entries(connection, "tally")]


def test_in_one_batch_the_later_events_of_a_refused_one_park_behind_it_and_all_others_are_applied(
    inbox: Connection,
) -> None:
    before, culprit, other, after, by_another_topic = (
        *(placed("ord_1"), placed("ord_1"), placed("ord_2"), placed("ord_1")),
        cancelled("ord_1"),
    )
    outcome = apply(inbox, before, culprit, other, after, by_another_topic, projection=Refusing(culprit))
    assert (outcome.applied, outcome.duplicates, len(outcome.parked)) == (2, 0, 3)
    assert tally(inbox) == [before.event_id, other.event_id]
    assert parked(inbox) == [
        (culprit.event_id, "culprit"),
        (after.event_id, "follower"),
        (by_another_topic.event_id, "follower"),
    ]
    assert count(inbox, "tally") == Count(culprits=1, followers=2)


def test_of_several_that_are_refused_only_the_first_of_each_key_is_a_culprit(inbox: Connection) -> None:
    """The others were asked about in a state in which the first was there; they are to be asked again."""
    events = [placed("ord_1"), placed("ord_2"), placed("ord_1"), placed("ord_2")]
    apply(inbox, *events, projection=Refusing(*events))
    assert parked(inbox) == [
        (event.event_id, kind)
        for event, kind in zip(events, ("culprit", "culprit", "follower", "follower"), strict=True)
    ]


def test_in_later_batches_too_and_also_behind_bytes_that_nobody_can_read(inbox: Connection) -> None:
    apply_batch([poison(b"ord_1")], Tally(), inbox)
    after, other, by_another_topic = placed("ord_1"), placed("ord_2"), cancelled("ord_1")
    apply(inbox, after, other, projection=Tally())
    apply(inbox, by_another_topic, projection=Tally())
    assert tally(inbox) == [other.event_id]
    assert parked(inbox) == [(None, "culprit"), (after.event_id, "follower"), (by_another_topic.event_id, "follower")]


def test_a_follower_is_kept_byte_for_byte_with_its_place_and_headers(inbox: Connection) -> None:
    event = placed("ord_1")
    came = record(event.to_bytes() + b" ", b"ord_1", headers=(("trace", b"\xff"), ("trace", None)))
    apply_batch([poison(b"ord_1"), Readable(came, event)], Tally(), inbox)
    row = "SELECT value, header_names, header_values, \"offset\" FROM quarantined_events WHERE kind = 'follower'"
    expected = (came.value, [b"trace", b"trace"], [b"\xff", None], came.offset)
    assert inbox.execute(row).fetchone() == expected


def test_records_without_a_key_park_alone(inbox: Connection) -> None:
    event = placed("ord_1")
    apply_batch([poison(None), readable(event), poison(None)], Tally(), inbox)
    assert (tally(inbox), parked(inbox)) == ([event.event_id], [(None, "culprit")] * 2)


def test_keys_longer_than_an_index_takes_hold_their_followers_back_too(inbox: Connection) -> None:
    apply_batch([poison(b"k" * 1_000_000), poison(b"k" * 1_000_000, b"\xfe")], Tally(), inbox)
    assert count(inbox, "tally").total == 2


def test_one_consumers_quarantine_holds_back_no_other_consumer(inbox: Connection) -> None:
    event = placed("ord_1")
    apply_batch([poison(b"ord_1")], Tally("billing"), inbox)
    apply(inbox, event, projection=Tally())
    assert tally(inbox) == [event.event_id]


def test_all_of_a_key_delivered_again_while_it_is_parked_changes_nothing(inbox: Connection) -> None:
    events = [placed("ord_1") for _ in range(4)]
    batch = [readable(event) for event in events]
    projection = Refusing(events[1])
    assert apply_batch(batch, projection, inbox).applied == 1
    for again in (batch, batch[2:], batch[:1]):
        assert apply_batch(again, Tally(), inbox) == Outcome(0, len(again), [])
    assert (tally(inbox), count(inbox, "tally").total) == ([events[0].event_id], 3)


@pytest.mark.parametrize("by_the_same_record", [True, False], ids=["the same record", "a copy elsewhere in the topic"])
def test_a_discarded_event_that_comes_again_stays_discarded(inbox: Connection, by_the_same_record: bool) -> None:
    event, after = placed("ord_1"), placed("ord_1")
    came = readable(event)
    apply_batch([came], Refusing(event), inbox)
    [entry] = entries(inbox, "tally")
    assert discard(inbox, "tally", entry.id, "a test order", "somebody")
    again = came if by_the_same_record else readable(event)
    assert apply_batch([again, readable(after)], Tally(), inbox) == Outcome(1, 1, [])
    assert (tally(inbox), count(inbox, "tally").total) == ([after.event_id], 0)


def test_a_discarded_record_that_newer_code_can_read_stays_discarded_too(inbox: Connection) -> None:
    event = placed("ord_1")
    came = readable(event)
    apply_batch([Parked(came.record, Faulty(Category.VERSION, "as the test wants it"))], Tally(), inbox)
    [entry] = entries(inbox, "tally")
    assert discard(inbox, "tally", entry.id, "a test order", "somebody")
    assert apply_batch([came], Tally(), inbox) == Outcome(0, 1, [])
    assert tally(inbox) == []


def test_a_discarded_entry_keeps_its_bytes_and_who_and_why_and_is_closed(inbox: Connection) -> None:
    apply_batch([poison(b"ord_1", b"\xff\x00")], Tally(), inbox)
    [entry] = entries(inbox, "tally")
    assert discard(inbox, "tally", entry.id, "a test order", "somebody")
    assert not discard(inbox, "tally", entry.id, "once more", "somebody else")
    [closed] = entries(inbox, "tally", closed=True)
    assert (closed.state, closed.closed_reason, closed.closed_by) == ("discarded", "a test order", "somebody")
    assert inbox.execute("SELECT value FROM quarantined_events").fetchone() == (b"\xff\x00",)


def test_a_full_quarantine_applies_nothing_out_of_order_and_goes_on_when_there_is_room(inbox: Connection) -> None:
    culprit, *after = [placed("ord_1") for _ in range(4)]
    other = cancelled("ord_2")
    batch, projection, limits = [*map(readable, (culprit, *after, other))], Refusing(culprit), Limits(2, 100)
    outcome = apply_batch(batch, projection, inbox, limits=limits)
    assert (outcome.applied, len(outcome.parked), len(outcome.waiting)) == (1, 2, 2)
    assert [each.offset for each in outcome.waiting] == [each.record.offset for each in batch[2:4]]
    discard(inbox, "tally", entries(inbox, "tally")[0].id, "a test order", "somebody")
    outcome = apply_batch(batch, projection, inbox, limits=limits)
    assert ([fault.event_id for _, fault in outcome.parked], len(outcome.waiting)) == ([after[1].event_id], 1)
    assert tally(inbox) == [other.event_id]


def test_a_batch_that_is_split_leaves_alone_what_follows_something_that_there_is_no_room_for(
    inbox: Connection, inventory_dsn: str
) -> None:
    culprit, follower, *behind = placed("ord_1"), placed("ord_1"), placed("ord_2"), placed("ord_3")

    def fail(contract: Contract, tx: Connection) -> None:
        if contract.event_id == culprit.event_id:
            raise RuntimeError("as the test wants it")

    batch, finished = [readable(each) for each in (culprit, follower, *behind)], Finished()
    database, subscriber = Database(inventory_dsn, "test"), cast(Subscriber, finished)
    settler = Settler(Tally(then=fail), database, subscriber, Event(), attempts=1, limits=Limits(per_key=1))
    settler.settle(batch)
    database.drop()
    assert (finished.offsets, tally(inbox)) == ({batch[0].record.offset}, [])
    assert settler.waiting == {(culprit.topic, 0)}
