"""Redrives and discards of events that lie above the relay's checkpoint: it will meet them, and what is before them."""

from collections.abc import Iterator

import pytest

from infrastructure import redrive
from infrastructure.kafka_faults import Fault
from infrastructure.outbox import Outbox
from infrastructure.outbox_relay import Outcome, Relay
from infrastructure.outgoing_records import discard, records
from infrastructure.outgoing_redrives import ask
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed
from tests.support.parcels import Parcels, mended_outbox, parcel_outbox, parcels_in
from tests.support.relays import NEVER, Recorder, relay_by_hand, steps

RELAY = "parcels"


@pytest.fixture
def parcels(store_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parcels]:
    monkeypatch.setattr(redrive, "_EVERY", 0.0)
    with parcels_in(store_dsn) as parcels:
        yield parcels


def kafka_is_away(_messages: list[OutgoingMessage]) -> int:
    raise PublishFailed(0, "_TRANSPORT", Fault.BROKER)


def x_is_too_large(messages: list[OutgoingMessage]) -> int:
    index = [message.key for message in messages].index(b"x")
    raise PublishFailed(0, "MSG_SIZE_TOO_LARGE", Fault.MESSAGE, index)


def takes_up_all(relay: Relay) -> None:
    while relay.step(NEVER).outcome is not Outcome.IDLE:
        pass


def relay_all(dsn: str, outbox: Outbox) -> list[OutgoingMessage]:
    """What a relay publishes that starts now and runs until nothing is left to do."""
    with relay_by_hand(dsn, outbox, publisher := Recorder()) as relay:
        takes_up_all(relay)
        relay.release()
    return publisher.messages


def parks_while_kafka_is_away(dsn: str) -> None:
    with relay_by_hand(dsn, parcel_outbox(RELAY), Recorder(kafka_is_away)) as relay:
        assert relay.step(NEVER).outcome is Outcome.REFUSED
        assert relay.position == 0
        relay.release()


def open_entries(parcels: Parcels) -> list[tuple[str, int]]:
    return [(each.originator_id, each.originator_version) for each in records(parcels.connection, RELAY, limit=99)]


def discard_version(parcels: Parcels, version: int) -> None:
    (entry,) = [each for each in records(parcels.connection, RELAY, limit=99) if each.originator_version == version]
    assert discard(parcels.connection, RELAY, entry.id, "never to be sent", "ann")


def test_what_was_parked_in_a_batch_that_kafka_did_not_take_is_not_redriven_before_what_precedes_it(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("x")
    parcels.move("x", note="!")
    parcels.move_all(["x", "y"], times=2)
    parks_while_kafka_is_away(store_dsn)
    assert open_entries(parcels) == [("x", 2), ("x", 3), ("x", 4)]
    ask(parcels.connection, RELAY)

    found = relay_all(store_dsn, mended_outbox(RELAY))

    assert (steps(found, "x"), steps(found, "y")) == ([1, 2, 3, 4], [1, 2])
    assert open_entries(parcels) == []


def test_a_key_that_waits_for_the_relay_to_pass_it_holds_no_other_key_back(store_dsn: str, parcels: Parcels) -> None:
    parcels.move("y", note="!")
    assert relay_all(store_dsn, parcel_outbox(RELAY)) == []
    parcels.move("x")
    parcels.move("x", note="!")
    with relay_by_hand(store_dsn, parcel_outbox(RELAY), Recorder(kafka_is_away)) as relay:
        assert relay.step(NEVER).outcome is Outcome.REFUSED
        relay.release()
    ask(parcels.connection, RELAY)

    with relay_by_hand(store_dsn, mended_outbox(RELAY), publisher := Recorder()) as relay:
        relay.step(NEVER)
        assert (steps(publisher.messages, "y"), steps(publisher.messages, "x")) == ([1], [])
        takes_up_all(relay)

    assert steps(publisher.messages, "x") == [1, 2]


def test_a_relay_that_was_set_back_publishes_all_of_a_key_again_before_it_redrives_the_rest(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("x")
    parcels.move("x", note="!")
    parcels.move("x")
    assert steps(relay_all(store_dsn, parcel_outbox(RELAY))) == [1]
    parcels.connection.execute("UPDATE relay_checkpoints SET position = 0, anchor = NULL")
    ask(parcels.connection, RELAY)

    assert steps(relay_all(store_dsn, mended_outbox(RELAY))) == [1, 2, 3]


def test_while_the_store_lacks_what_kafka_was_told_nothing_is_redriven_because_that_would_hide_it(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("x", note="!")
    assert relay_all(store_dsn, parcel_outbox(RELAY)) == []
    ask(parcels.connection, RELAY)

    told = Mark(position=9, anchor=b"of an event that the store lost")
    with relay_by_hand(store_dsn, mended_outbox(RELAY), publisher := Recorder(resumed=told)) as relay:
        assert [relay.step(NEVER).outcome for _ in range(3)] == [Outcome.HELD] * 3

    assert (publisher.calls, open_entries(parcels)) == ([], [("x", 1)])


def test_a_redrive_that_is_told_to_stop_releases_what_was_acknowledged_and_asks_the_publisher_anew(
    store_dsn: str, parcels: Parcels
) -> None:
    for _ in range(3):
        parcels.move("x", note="!")
    assert relay_all(store_dsn, parcel_outbox(RELAY)) == []
    ask(parcels.connection, RELAY)

    with relay_by_hand(store_dsn, mended_outbox(RELAY), publisher := Recorder(lambda _: 1)) as relay:
        stopped = relay.step(NEVER)
        assert (stopped.outcome, stopped.published, open_entries(parcels)) == (Outcome.STOPPED, 1, [("x", 2), ("x", 3)])
        publisher.answer, before = len, publisher.resumes
        relay.step(NEVER)  # in turn: it is the batches' now
        takes_up_all(relay)

    assert publisher.resumes == before + 1
    assert (steps(publisher.messages), open_entries(parcels)) == ([1, 2, 3], [])


def test_a_follower_discarded_before_the_relay_has_passed_it_is_not_parked_again_and_never_published(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("x")
    parcels.move("x", note="!")
    parcels.move("x")
    with relay_by_hand(store_dsn, parcel_outbox(RELAY), publisher := Recorder(kafka_is_away)) as relay:
        assert relay.step(NEVER).outcome is Outcome.REFUSED
        discard_version(parcels, 3)
        publisher.answer = len
        takes_up_all(relay)
        relay.release()
    assert (steps(publisher.messages), open_entries(parcels)) == ([1], [("x", 2)])

    ask(parcels.connection, RELAY)
    parcels.move("x")

    assert steps(relay_all(store_dsn, mended_outbox(RELAY))) == [2, 4]


def test_the_last_of_a_key_discarded_before_the_relay_has_passed_it_is_not_published(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("y")
    parcels.move_all(["y", "x", "z"], times=1)
    with relay_by_hand(store_dsn, parcel_outbox(RELAY), publisher := Recorder(x_is_too_large)) as relay:
        relay.step(NEVER)
        publisher.answer = len
        relay.step(NEVER)
        publisher.answer = kafka_is_away
        assert relay.step(NEVER).outcome is Outcome.REFUSED
        assert (open_entries(parcels), relay.position) == ([("x", 1)], 1)
        discard_version(parcels, 1)

        publisher.answer, publisher.calls = len, []
        takes_up_all(relay)

    assert [(message.key, message.position) for message in publisher.messages] == [(b"y", 2), (b"z", 4)]
    assert open_entries(parcels) == []
