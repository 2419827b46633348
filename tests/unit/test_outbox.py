"""An outbox is found by name, and what it makes of an event is checked before anybody sees it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from uuid import UUID

import pytest

from domain.base import DomainEvent
from domain.contracts import Contract
from domain.event_mapper import EventMapper
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.event_reader import RecordedEvent
from infrastructure.outbox import OutboxNotFound, load_outbox
from infrastructure.outgoing import MessageMapper, Unmappable
from infrastructure.relay_batch import Batch
from tests.support.outgoing import messages_of
from tests.support.parcels import Parcel, parcel_outbox

NAMESPACE = UUID("7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11")
NOW = datetime(2026, 9, 29, 10, 30, tzinfo=UTC)
OUTBOX = parcel_outbox("parcels")
MOVED = OUTBOX.contracts[0]


def moved(position: int, note: str = "") -> RecordedEvent:
    stored = EventMapper().to_stored_event(
        Parcel.Moved(originator_id="a", originator_version=position, timestamp=NOW, note=note)
    )
    return RecordedEvent("a", position, stored.topic, stored.state, position)


# --- Found by name -------------------------------------------------------------------------------------


def test_the_outbox_of_a_folder_is_found_by_the_folders_name() -> None:
    outbox = load_outbox("domain.orders")

    assert outbox.name == "domain.orders"
    assert outbox.contracts == (OrderPlaced, OrderCancelled)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", ".orders", "orders.", "domain..orders", "domain.orders ", "domain/orders", "a\0b"),
        *("nosuch", "domain.ordrs", "domain.ordrs.sub", "no_such_package.orders", "domain.orders.order", "domain"),
    ],
)
def test_a_wrong_name_is_told_so(name: str) -> None:
    with pytest.raises(OutboxNotFound) as not_found:
        load_outbox(name)

    assert not_found.value.name == name


@pytest.mark.parametrize(
    ("contents", "missing"),
    [
        ({}, "CONTRACTS"),
        ({"CONTRACTS": (), "to_contracts": print}, "CONTRACTS"),
        ({"CONTRACTS": (int,), "to_contracts": print}, "CONTRACTS"),
        ({"CONTRACTS": (OrderPlaced,)}, "to_contracts"),
    ],
)
def test_a_module_that_lacks_something_is_told_what(
    monkeypatch: pytest.MonkeyPatch, contents: dict[str, object], missing: str
) -> None:
    module = ModuleType("incomplete.outbox")
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, "incomplete", ModuleType("incomplete"))
    monkeypatch.setitem(sys.modules, "incomplete.outbox", module)

    with pytest.raises(OutboxNotFound, match=missing):
        load_outbox("incomplete")


# --- What an event becomes -----------------------------------------------------------------------------


def test_an_event_that_is_mapped_again_is_the_same_message() -> None:
    once, again = (messages_of(MessageMapper(OUTBOX, NAMESPACE), moved(1)) for _ in range(2))
    assert once == again


def test_mapped_together_each_is_what_it_is_alone() -> None:
    """Event 3 cannot be mapped; nobody but itself is the worse for it."""
    broken = replace_state(moved(3), b"{}")
    mapper = MessageMapper(OUTBOX, NAMESPACE)

    first, second, third, fourth = mapper.messages_of_all([moved(1), moved(2), broken, moved(4)])

    assert [first, second, fourth] == [messages_of(mapper, moved(position)) for position in (1, 2, 4)]
    with pytest.raises(Unmappable) as alone:
        messages_of(mapper, broken)
    assert isinstance(third, Unmappable)
    assert (third.position, third.problem) == (3, alone.value.problem)


def replace_state(event: RecordedEvent, state: bytes) -> RecordedEvent:
    return RecordedEvent(event.originator_id, event.originator_version, event.topic, state, event.position)


def test_contracts_have_the_ids_that_their_messages_carry() -> None:
    mapper = MessageMapper(OUTBOX, NAMESPACE)

    (told,), (message,) = mapper.contracts(moved(1)), messages_of(mapper, moved(1))

    assert dict(message.headers)["ce_id"] == told.event_id.encode()


def mapped_by(
    to_contracts: Callable[[DomainEvent, Callable[[type[Contract]], str]], Sequence[Contract]],
) -> MessageMapper:
    return MessageMapper(replace(OUTBOX, to_contracts=to_contracts), NAMESPACE)


def contract(event_id: str) -> Contract:
    return MOVED.model_validate(
        {"event_id": event_id, "event_type": "ParcelMoved", "schema_version": 1, "occurred_at": NOW}
        | {"parcel_id": "a", "step": 1, "note": ""}
    )


def test_two_contracts_with_one_event_id_are_refused_because_receivers_would_drop_the_second() -> None:
    with pytest.raises(Unmappable, match="two contracts with one event id"):
        messages_of(mapped_by(lambda _event, _id: [contract("evt_1"), contract("evt_1")]), moved(1))


def test_a_contract_that_was_not_announced_is_refused_because_nobody_made_its_topic() -> None:
    stranger = parcel_outbox("elsewhere").contracts[0]
    mapper = mapped_by(lambda _event, _id: [stranger.model_validate(dict(contract("evt_1")))])

    with pytest.raises(Unmappable, match="not in its CONTRACTS"):
        messages_of(mapper, moved(1))


def test_a_mistake_in_the_outbox_is_named_by_its_kind_and_shows_no_value() -> None:
    def mistaken(_event: DomainEvent, _id: object) -> Sequence[Contract]:
        raise KeyError("secret")

    with pytest.raises(Unmappable) as unmappable:
        messages_of(mapped_by(mistaken), moved(1))

    assert unmappable.value.problem == "parcels.outbox failed with KeyError"


def test_memory_that_ran_out_is_no_fault_of_an_event() -> None:
    def short_of_memory(_event: DomainEvent, _id: object) -> Sequence[Contract]:
        raise MemoryError

    with pytest.raises(MemoryError):
        messages_of(mapped_by(short_of_memory), moved(1))


@pytest.mark.parametrize(
    ("acknowledged", "covered"), [(0, 11), (1, 11), (2, 13), (3, 19)], ids=["none", "half", "one event", "all"]
)
def test_only_events_whose_messages_are_all_acknowledged_are_covered(acknowledged: int, covered: int) -> None:
    """Positions 11, 13 and 19 become nothing; 12 becomes two messages and 17 one."""
    message = messages_of(MessageMapper(OUTBOX, NAMESPACE), moved(1))[0]
    messages = [message._replace(position=position) for position in (12, 12, 17)]

    events = [moved(position) for position in (11, 12, 13, 17, 19)]
    assert Batch(events, messages).covered(acknowledged) == moved(covered)


def test_nothing_is_covered_before_the_first_event_is() -> None:
    message = messages_of(MessageMapper(OUTBOX, NAMESPACE), moved(1))[0]

    assert Batch([moved(1)], [message]).covered(0) is None
    assert Batch([], []).covered(0) is None
