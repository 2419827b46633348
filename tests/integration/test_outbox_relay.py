"""One step of a relay: what it publishes, what its checkpoint covers, and what it never passes."""

import logging
from collections.abc import Iterator
from threading import Event

import psycopg
import pytest

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure import metrics, redrive
from infrastructure.event_store import store_env
from infrastructure.kafka_faults import Fault
from infrastructure.lease import LeaseLost, acquire
from infrastructure.outbox import load_outbox
from infrastructure.outbox_relay import Outcome
from infrastructure.outgoing_records import records
from infrastructure.outgoing_redrives import ask
from infrastructure.postgres import connect
from infrastructure.publisher import KafkaPublisher, OutgoingMessage, PublishFailed
from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, mended_outbox, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relays import (
    NEVER,
    Recorder,
    checkpoint_of,
    in_order,
    relay_by_hand,
    repeats_are_identical,
    settings_for,
    steps,
)

OUTBOX = parcel_outbox("parcels")


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


# --- What is published ---------------------------------------------------------------------------------


def test_orders_become_their_contracts_with_key_and_envelope(store_dsn: str) -> None:
    orders, publisher = Orders(store_env(store_dsn)), Recorder()
    line = LineItem(sku="pen", quantity=2, unit_price_minor=150)
    orders.place(PlaceOrder(order_id="ord_1", customer_id="cus_1", currency="EUR", lines=(line,)))
    orders.cancel(CancelOrder(order_id="ord_1", reason="found it cheaper"))
    orders.close()

    with relay_by_hand(store_dsn, load_outbox("domain.orders"), publisher) as relay:
        assert relay.step(NEVER).outcome is Outcome.MOVED

    placed, cancelled = publisher.messages
    assert (placed.topic, cancelled.topic) == ("orders.placed.v1", "orders.cancelled.v1")
    assert placed.key == cancelled.key == b"ord_1"
    assert (dict(placed.headers)["ce_sequence"], dict(cancelled.headers)["ce_sequence"]) == (b"1", b"2")
    assert dict(placed.headers)["ce_id"] != dict(cancelled.headers)["ce_id"]


def test_what_was_committed_while_no_relay_ran_is_published_when_one_starts(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move_all(["a", "b", "c"], times=4)

    with relay_by_hand(store_dsn, parcel_outbox(topic), KafkaPublisher(settings_for(store_dsn, kafka.bootstrap))) as it:
        assert it.step(NEVER).published == 12
        assert it.step(NEVER).outcome is Outcome.IDLE

    found = published(kafka.bootstrap, topic)
    assert len(found) == 12
    assert all(in_order(found, parcel, 4) for parcel in "abc")


def test_an_append_that_is_rolled_back_leaves_no_row_and_no_message(store_dsn: str, parcels: Parcels) -> None:
    publisher = Recorder()
    with psycopg.connect(store_dsn) as session:
        session.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('x', 1, 'parcel', '')"
        )
        session.rollback()
    parcels.move("a")

    with relay_by_hand(store_dsn, OUTBOX, publisher) as relay:
        assert relay.step(NEVER).outcome is Outcome.MOVED

    rows = parcels.connection.execute("SELECT originator_id FROM stored_events").fetchall()
    assert rows == [("a",)]
    assert [message.key for message in publisher.messages] == [b"a"]


def test_a_write_that_is_still_open_is_waited_for_and_never_passed(store_dsn: str, parcels: Parcels) -> None:
    publisher = Recorder()
    with connect(store_dsn, application_name="test slow", autocommit=False) as slow:
        Parcels(slow).move("slow")
        parcels.move("fast")
        with relay_by_hand(store_dsn, OUTBOX, publisher) as relay:
            assert [relay.step(NEVER).outcome for _ in range(3)] == [Outcome.IDLE] * 3
            assert checkpoint_of(store_dsn).position == 0
            slow.commit()
            relay.step(NEVER)
            assert [message.key for message in publisher.messages] == [b"slow", b"fast"]


# --- What the checkpoint covers ------------------------------------------------------------------------


def test_the_checkpoint_covers_events_that_become_no_message(store_dsn: str, parcels: Parcels) -> None:
    parcels.weigh("a")
    parcels.move("a")
    last = parcels.weigh("a")

    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder()) as relay:
        assert relay.step(NEVER).published == 1

    assert checkpoint_of(store_dsn).position == last
    assert len(publisher.messages) == 1


def test_the_checkpoint_covers_only_what_is_acknowledged(store_dsn: str, parcels: Parcels) -> None:
    positions = [parcels.move("a") for _ in range(5)]

    def takes_two(messages: list[OutgoingMessage]) -> int:
        raise PublishFailed(2, "_TIMED_OUT", Fault.BROKER)

    publisher = Recorder(answer=takes_two)
    with relay_by_hand(store_dsn, OUTBOX, publisher) as relay:
        step = relay.step(NEVER)
        assert (step.outcome, step.published, step.reason) == (Outcome.REFUSED, 2, "_TIMED_OUT")
        assert checkpoint_of(store_dsn).position == positions[1]

        publisher.answer = len
        while relay.step(NEVER).outcome is Outcome.MOVED:
            pass
        assert checkpoint_of(store_dsn).position == positions[-1]
        assert steps(publisher.messages) == [1, 2, 3, 4, 5]


def test_after_a_refusal_each_attempt_repeats_one_event_only(store_dsn: str, parcels: Parcels) -> None:
    parcels.move_all(["a", "b", "c"], times=10)

    def takes_none(messages: list[OutgoingMessage]) -> int:
        raise PublishFailed(0, "TOPIC_AUTHORIZATION_FAILED", Fault.TOPIC)

    publisher = Recorder(answer=takes_none)
    with relay_by_hand(store_dsn, OUTBOX, publisher) as relay:
        for _ in range(4):
            relay.step(NEVER)

    assert [len(call) for call in publisher.calls] == [30, 1, 1, 1]


def test_told_to_stop_it_keeps_what_was_acknowledged(store_dsn: str, parcels: Parcels) -> None:
    positions = [parcels.move("a") for _ in range(5)]

    with relay_by_hand(store_dsn, OUTBOX, Recorder(answer=lambda _: 3)) as relay:
        assert relay.step(Event()).outcome is Outcome.STOPPED

    assert checkpoint_of(store_dsn).position == positions[2]


def test_an_event_that_is_published_again_is_the_same_in_key_value_and_headers(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels
) -> None:
    topic = topics("parcels")
    parcels.move_all(["a", "b"], times=3)
    publisher = KafkaPublisher(settings_for(store_dsn, kafka.bootstrap))

    for _ in range(2):
        with relay_by_hand(store_dsn, parcel_outbox(topic), publisher) as relay:
            relay.step(NEVER)
            relay.release()
        parcels.connection.execute("UPDATE relay_checkpoints SET position = 0, anchor = NULL")

    found = published(kafka.bootstrap, topic)
    assert len(found) == 12
    assert len({dict(each.headers)["ce_id"] for each in found}) == 6
    assert repeats_are_identical(found)


# --- What cannot be published, and what it never passes ---------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "state", "reason"),
    [
        ("parcel.exploded", b"{}", "No event class has the stored topic 'parcel.exploded'"),
        ("parcel.moved", b'{"note":"secret"}', "timestamp: Field required"),
        ("parcel.moved", b"secret", "cannot be read"),
        ("parcel.moved", b'{"timestamp":"2026-01-01T00:00:00Z","note":"secret!"}', "Moved: note: String should match"),
    ],
    ids=["unknown topic", "incomplete", "not JSON", "against the contract"],
)
def test_an_event_that_cannot_be_mapped_is_in_quarantine_before_the_checkpoint_passes_it_and_is_seen(
    store_dsn: str, parcels: Parcels, caplog: pytest.LogCaptureFixture, topic: str, state: bytes, reason: str
) -> None:
    parcels.move("a")
    bad = parcels.write("b", topic, state)
    parcels.move("b")
    last = parcels.move("c")

    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder()) as relay, caplog.at_level(logging.ERROR):
        assert [relay.step(NEVER).outcome for _ in range(2)] == [Outcome.MOVED, Outcome.IDLE]

    assert [message.key for message in publisher.messages] == [b"a", b"c"]
    assert checkpoint_of(store_dsn).position == last
    culprit, follower = records(parcels.connection, "parcels", limit=9)
    assert (culprit.position, culprit.kind, culprit.category) == (bad, "culprit", "unmappable")
    assert (follower.kind, follower.category) == ("follower", "behind")
    assert reason in culprit.problem
    assert "secret" not in culprit.problem
    assert [vars(record)["position"] for record in caplog.records] == [bad]


def test_what_is_parked_is_written_down_before_anything_of_its_batch_is_sent(store_dsn: str, parcels: Parcels) -> None:
    """Else a crash right after Kafka has the batch, with its position, would lose what was parked."""
    parcels.move("a")
    parcels.move("b", note="!")
    seen: list[int] = []

    def looks(messages: list[OutgoingMessage]) -> int:
        seen.append(len(records(parcels.connection, "parcels", limit=9)))
        return len(messages)

    with relay_by_hand(store_dsn, OUTBOX, Recorder(answer=looks)) as relay:
        relay.step(NEVER)

    assert seen == [1]


def test_what_is_parked_is_told_and_counted_once_however_often_relays_meet_it(
    store_dsn: str, parcels: Parcels, caplog: pytest.LogCaptureFixture
) -> None:
    parcels.move("a")
    bad = parcels.move("b", note="!")
    counted = metrics.RELAY_QUARANTINED.labels("parcels", "unmappable")
    before = counted._value.get()

    def kafka_is_away(_messages: list[OutgoingMessage]) -> int:
        raise PublishFailed(0, "_TRANSPORT", Fault.BROKER)

    for _ in range(2):
        with relay_by_hand(store_dsn, OUTBOX, Recorder(kafka_is_away)) as relay, caplog.at_level(logging.ERROR):
            assert relay.step(NEVER).outcome is Outcome.REFUSED
            relay.release()

    assert [vars(record)["position"] for record in caplog.records] == [bad]
    assert counted._value.get() == before + 1


def test_of_what_kafka_refuses_one_event_at_a_time_is_found_and_the_others_go_on(
    store_dsn: str, parcels: Parcels
) -> None:
    for number in range(40):
        parcels.move(f"{'poison' if number % 3 == 0 else 'fine'}-{number}")

    def refuses_poison(messages: list[OutgoingMessage]) -> int:
        bad = next((index for index, each in enumerate(messages) if each.key.startswith(b"poison")), None)
        if bad is not None:
            raise PublishFailed(bad, "MSG_SIZE_TOO_LARGE", Fault.MESSAGE, bad)
        return len(messages)

    publisher = Recorder(answer=refuses_poison)
    with relay_by_hand(store_dsn, OUTBOX, publisher, batch_size=20) as relay:
        while relay.step(NEVER).outcome is Outcome.MOVED:
            pass

    assert len(records(parcels.connection, "parcels", limit=99)) == 14
    assert len({each.key for each in publisher.messages if each.key.startswith(b"fine")}) == 26
    assert len(publisher.messages) < 20 + 3 * 40, "an attempt after a refusal is a small one"


def test_a_redrive_while_the_next_batch_is_prepared_already_lets_nothing_overtake(
    store_dsn: str, parcels: Parcels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "_EVERY", 0.0)
    parcels.move("x", note="!")
    parcels.move("x")
    with relay_by_hand(store_dsn, OUTBOX, Recorder()) as relay:
        relay.step(NEVER)
        relay.release()
    parcels.move_all(["y"], times=4)
    parcels.move_all(["x", "y"], times=6)
    asked: list[int] = []

    def asks_for_it(messages: list[OutgoingMessage]) -> int:
        if not asked:
            asked.append(ask(parcels.connection, "parcels")[0])
        return len(messages)

    publisher = Recorder(answer=asks_for_it)
    with relay_by_hand(store_dsn, mended_outbox("parcels"), publisher, batch_size=4) as relay:
        while relay.step(NEVER).outcome is Outcome.MOVED:
            pass

    assert asked == [1], "x was parked when the first batch was under way and the second one prepared"
    assert steps(publisher.messages, "x") == list(range(1, 9))
    assert steps(publisher.messages, "y") == list(range(1, 11))
    assert records(parcels.connection, "parcels", limit=9) == []


def test_a_checkpoint_above_everything_stored_is_an_alarm_that_stays(store_dsn: str, parcels: Parcels) -> None:
    last = parcels.move("a")

    with relay_by_hand(store_dsn, OUTBOX, publisher := Recorder()) as relay:
        relay.step(NEVER)
        parcels.connection.execute("UPDATE relay_checkpoints SET position = %s", [last + 2])
        relay.position = last + 2
        assert relay.step(NEVER).outcome is Outcome.HELD

        for _ in range(5):  # positions that the checkpoint covers, and more
            parcels.move("b")
        assert [relay.step(NEVER).outcome for _ in range(3)] == [Outcome.HELD] * 3

        parcels.connection.execute("UPDATE relay_checkpoints SET position = %s", [last])  # the operator's remedy
        assert [relay.step(NEVER).outcome for _ in range(2)] == [Outcome.HELD, Outcome.MOVED]
    assert steps(publisher.messages, "b") == [1, 2, 3, 4, 5]


# --- The lease -----------------------------------------------------------------------------------------


def test_a_relay_whose_lease_was_taken_over_sends_nothing_and_moves_nothing(store_dsn: str, parcels: Parcels) -> None:
    parcels.move("a")

    with (
        relay_by_hand(store_dsn, OUTBOX, publisher := Recorder(), lease=0.05) as relay,
        connect(store_dsn, application_name="test successor") as successor,
    ):
        while acquire(successor, OUTBOX.name, 60) is None:
            pass
        with pytest.raises(LeaseLost):
            relay.step(NEVER)

    assert publisher.messages == []
    assert checkpoint_of(store_dsn).position == 0


def test_a_relay_that_loses_its_lease_while_it_publishes_does_not_move_the_checkpoint(
    store_dsn: str, parcels: Parcels
) -> None:
    parcels.move("a")

    def is_overtaken(messages: list[OutgoingMessage]) -> int:
        parcels.connection.execute("UPDATE relay_checkpoints SET epoch = epoch + 1, owner = 'the successor'")
        return len(messages)

    with (
        relay_by_hand(store_dsn, OUTBOX, Recorder(answer=is_overtaken)) as relay,
        pytest.raises(LeaseLost),
    ):
        relay.step(NEVER)

    assert checkpoint_of(store_dsn).position == 0
