"""From stored events to the messages that tell of them. Pure: the same event always becomes the same bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from domain.base import Aggregate
from domain.contracts import Contract
from domain.errors import CounterfoilError, problems_of
from domain.event_mapper import EventMapper, UnknownTopic, UnreadableEvent
from infrastructure.cloud_events import envelope
from infrastructure.delivery import OutgoingMessage
from infrastructure.event_ids import event_id
from infrastructure.event_reader import RecordedEvent
from infrastructure.outbox import Outbox


@dataclass(eq=False)
class Unmappable(CounterfoilError):
    """An event that does not become messages. problem: names fields and classes, never values.

    What to do: run code that can map it; until then the relay parks it.
    """

    position: int
    problem: str

    def __str__(self) -> str:
        return f"The event at position {self.position} cannot be mapped: {self.problem}"


class MessageMapper:
    """Maps the events of one store through one outbox."""

    def __init__(self, outbox: Outbox, namespace: UUID) -> None:
        self._outbox, self._namespace = outbox, namespace
        self._published = frozenset(outbox.contracts)
        self._events = EventMapper()

    def messages_of_all(self, events: Sequence[RecordedEvent]) -> list["list[OutgoingMessage] | Unmappable"]:
        """For each event, in order, its messages, often one or none, or why it has none; give it some hundred at most.

        One stage after the other for all of them: so the code of a stage stays in the processor's cache, which
        saves a third of the time.
        """
        found: list[Any] = list(events)
        for stage in (self._read, self._told, self._messages):
            found = _each(stage, events, found)
        return found

    def contracts(self, recorded: RecordedEvent) -> Sequence[Contract]:
        """What the event tells the world, with the ids that its messages carry; often one contract, or none.

        Guarantees: the same event always becomes equal contracts, each valid, of a class that the outbox declares,
        and with an id of its own. Raises Unmappable.
        """
        return self._told(recorded, self._read(recorded, recorded))

    def _read(self, recorded: RecordedEvent, _as_stored: RecordedEvent) -> Aggregate.Event:
        try:
            return self._events.to_domain_event(recorded)
        except (UnknownTopic, UnreadableEvent) as error:
            raise Unmappable(recorded.position, str(error)) from error
        except Exception as error:
            raise self._failed(recorded, error) from error

    def _told(self, recorded: RecordedEvent, event: Aggregate.Event) -> Sequence[Contract]:
        def id_of(contract: type[Contract]) -> str:
            return event_id(self._namespace, recorded, event.timestamp, contract.contract_type())

        try:
            contracts = tuple(self._outbox.to_contracts(event, id_of))
        except ValidationError as error:
            raise Unmappable(recorded.position, f"{error.title}: {problems_of(error)}") from None
        except Exception as error:
            raise self._failed(recorded, error) from error
        for contract in contracts:
            if type(contract) not in self._published:
                raise Unmappable(recorded.position, f"{self._outbox.name}.outbox made what is not in its CONTRACTS")
        if len(contracts) > 1 and len({contract.event_id for contract in contracts}) < len(contracts):
            raise Unmappable(recorded.position, f"{self._outbox.name}.outbox made two contracts with one event id")
        return contracts

    def _messages(self, recorded: RecordedEvent, contracts: Sequence[Contract]) -> list[OutgoingMessage]:
        try:
            return [self._message(contract, recorded) for contract in contracts]
        except Exception as error:
            raise self._failed(recorded, error) from error

    def _failed(self, recorded: RecordedEvent, error: Exception) -> Unmappable:
        """Whatever else the code of an outbox raises, in `to_contracts` or in a contract's key.

        Memory that ran out is no fault of the event, and would park it: that is raised as it is.
        """
        if isinstance(error, MemoryError):
            raise error
        return Unmappable(recorded.position, f"{self._outbox.name}.outbox failed with {type(error).__name__}")

    def _message(self, contract: Contract, recorded: RecordedEvent) -> OutgoingMessage:
        key = contract.key.encode()
        headers = envelope(contract, key, self._namespace, recorded.originator_version)
        return OutgoingMessage(contract.topic, key, contract.to_bytes(), headers, recorded.position)


def _each(
    stage: Callable[[RecordedEvent, Any], object], events: Sequence[RecordedEvent], found: Sequence[Any]
) -> list[Any]:
    """What a stage makes of what the stage before it found; an event that failed stays as it is."""
    made: list[Any] = []
    for recorded, each in zip(events, found, strict=True):
        try:
            made.append(each if type(each) is Unmappable else stage(recorded, each))
        except Unmappable as unmappable:
            made.append(unmappable)
    return made
