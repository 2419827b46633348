"""Given what has happened, when this is asked, then that happens: promises of a domain, tested without a database.

    PLACED = event(Order.Placed, customer_id="cus_1", currency="EUR", lines=(LINE,), placed_at=None)
    CANCELLED = event(Order.Cancelled, reason="too late")

    given(Order, PLACED).when(lambda order: order.cancel("too late")).then(CANCELLED)
    given(Order, PLACED, CANCELLED).when(lambda order: order.cancel("lost")).then_refused("already_cancelled")
    given(Order).when(lambda: Order.place(COMMAND)).then(PLACED)

Events are compared by class and fields, not by identity and time. Along the way every event is stored and
read back in memory, and what a decision did to the aggregate must be what its events do: state that was
changed without an event, or that does not survive being stored, fails the test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import ndiff
from typing import Any, Generic, NoReturn, TypeVar, overload

from pydantic import BaseModel

from domain.aggregate_state import to_state
from domain.application import Application
from domain.base import Aggregate, DomainError, DomainEvent, aggregate_topics, event_classes
from domain.contracts import Contract
from domain.event_mapper import EventMapper

T = TypeVar("T")
TAggregate = TypeVar("TAggregate", bound=Aggregate)
TApplication = TypeVar("TApplication", bound=Application)
TEvent = TypeVar("TEvent", bound=Aggregate.Event)
TContract = TypeVar("TContract", bound=Contract)

ToContracts = Callable[[DomainEvent, Callable[[type[Contract]], str]], tuple[Contract, ...]]
"""What an outbox has under the name `to_contracts`."""

SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def event(event_class: type[TEvent], **fields: Any) -> TEvent:
    """An event with these fields. Its identity and time are filled in where they are not given.

    Raises pydantic.ValidationError, naming what is missing, unknown or wrong.
    """
    filled: dict[str, Any] = {"originator_id": "some-id", "originator_version": 1, "timestamp": SOME_TIME}
    if issubclass(event_class, Aggregate.Created):
        (topic,) = (topic for topic, owner in aggregate_topics().items() if event_class in event_classes(owner))
        filled["originator_topic"] = topic
    return event_class(**(filled | fields))


def contract(contract_class: type[TContract], **fields: Any) -> TContract:
    """A contract with these fields, by their Python names; its id, type, version and time are filled in."""
    filled: dict[str, Any] = {
        "event_id": "evt_some",
        "event_type": contract_class.contract_type(),
        "schema_version": contract_class.contract_version(),
        "occurred_at": SOME_TIME,
    }
    return contract_class(**(filled | fields))


@overload
def given(aggregate_class: type[TAggregate]) -> "Nothing[TAggregate]": ...
@overload
def given(
    aggregate_class: type[TAggregate], first: Aggregate.Event, *later: Aggregate.Event
) -> "History[TAggregate]": ...
def given(
    aggregate_class: type[TAggregate], first: Aggregate.Event | None = None, *later: Aggregate.Event
) -> "Nothing[TAggregate] | History[TAggregate]":
    """An aggregate to which these events have happened, in this order; without any, one that is not there yet.

    All events get the id of the first, and versions from 1.
    """
    return Nothing(aggregate_class) if first is None else History(aggregate_class, (first, *later))


def given_application(application: TApplication, *steps: Callable[[TApplication], object]) -> "Running[TApplication]":
    """An application, such as `Orders()`, in memory, that has done these steps: `lambda orders: orders.place(...)`."""
    for step in steps:
        step(application)
    return Running(application)


@dataclass(frozen=True)
class Nothing(Generic[TAggregate]):
    aggregate_class: type[TAggregate]

    def when(self, create: Callable[[], TAggregate]) -> "Outcome[TAggregate]":
        """What comes of creating it: `lambda: Order.place(command)`."""
        try:
            aggregate = create()
        except DomainError as refusal:
            return Outcome((), refusal, None)
        return _decided(self.aggregate_class, (), aggregate)


@dataclass(frozen=True)
class History(Generic[TAggregate]):
    aggregate_class: type[TAggregate]
    events: tuple[Aggregate.Event, ...]

    def when(self, decide: Callable[[TAggregate], object]) -> "Outcome[TAggregate]":
        """What comes of a decision: `lambda order: order.cancel("too late")`."""
        history = tuple(
            each.model_copy(update={"originator_id": self.events[0].originator_id, "originator_version": version})
            for version, each in enumerate(self.events, start=1)
        )
        aggregate = _replay(self.aggregate_class, history)
        try:
            decide(aggregate)
        except DomainError as refusal:
            return Outcome((), refusal, None)
        return _decided(self.aggregate_class, history, aggregate)


@dataclass(frozen=True)
class Running(Generic[TApplication]):
    application: TApplication

    def when(self, step: Callable[[TApplication], T]) -> "Outcome[T]":
        """What comes of one more step: `lambda orders: orders.cancel(...)`."""
        recorder = self.application.recorder
        before = recorder.max_notification_id()
        try:
            answer = step(self.application)
        except DomainError as refusal:
            return Outcome((), refusal, None)
        stored = recorder.select_notifications(before, 1_000, inclusive_of_start=False)
        return Outcome(tuple(EventMapper().to_domain_event(each) for each in stored), None, answer)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of it: new events, or a refusal. answer: the aggregate, or what the application answered."""

    events: tuple[Aggregate.Event, ...]
    refusal: DomainError | None
    answer: T | None

    def then(self, *expected: Aggregate.Event) -> T:
        """Exactly these new events, in this order. Returns the answer, for a closer look."""
        __tracebackhide__ = True
        answer = self._accepted()
        if different := _difference(expected, self.events):
            _fail(f"other events than expected (- expected, + happened)\n{different}")
        return answer

    def then_nothing(self) -> T:
        """It was accepted, and nothing new happened."""
        __tracebackhide__ = True
        return self.then()

    def then_refused(self, rule: str) -> DomainError:
        """A DomainError of this rule. Returns it."""
        __tracebackhide__ = True
        if self.refusal is None:
            _fail(f"not refused by {rule!r}\n{_difference((), self.events) or '  nothing happened'}")
        if self.refusal.rule != rule:
            _fail(f"refused, not by {rule!r} but by {self.refusal.rule!r}: {self.refusal}", self.refusal)
        return self.refusal

    def then_published(self, to_contracts: ToContracts, *expected: Contract) -> T:
        """Exactly these contracts, in this order, when the new events go through this outbox."""
        __tracebackhide__ = True
        answer = self._accepted()
        published = [each for event in self.events for each in to_contracts(event, lambda _: "evt_some")]
        if different := _difference(expected, published):
            _fail(f"other contracts than expected (- expected, + published)\n{different}")
        return answer

    def _accepted(self) -> T:
        __tracebackhide__ = True
        if self.refusal is not None:
            _fail(f"refused by {self.refusal.rule!r}: {self.refusal}", self.refusal)
        return self.answer  # type: ignore[return-value]  # there is one when there is no refusal


def _decided(
    aggregate_class: type[TAggregate], history: tuple[Aggregate.Event, ...], aggregate: TAggregate
) -> Outcome[TAggregate]:
    new = tuple(each for each in aggregate.collect_events() if isinstance(each, Aggregate.Event))
    replayed = _replay(aggregate_class, history + new)
    if replayed != aggregate:
        different = _changed_fields(vars(replayed), vars(aggregate))
        _fail(f"the state is not what the events make (- as they make it, + as it is)\n{different}")
    if aggregate_class.snapshot_every is not None:
        to_state(aggregate)
    return Outcome(new, None, aggregate)


def _replay(aggregate_class: type[TAggregate], events: tuple[Aggregate.Event, ...]) -> TAggregate:
    mapper = EventMapper()
    aggregate: TAggregate | None = None
    for each in events:
        if type(each) not in event_classes(aggregate_class):
            raise TypeError(f"{type(each).__qualname__} is no event of {aggregate_class.__qualname__}")
        if isinstance(each, Aggregate.Created) != (aggregate is None):
            raise TypeError(f"the first event, and no other, creates the {aggregate_class.__qualname__}")
        stored = mapper.to_domain_event(mapper.to_stored_event(each))
        if stored != each:
            different = _changed_fields(dict(each), dict(stored))
            _fail(f"{type(each).__qualname__} does not come back as it was (- as it was, + as stored)\n{different}")
        aggregate = stored.mutate(aggregate)
    if aggregate is None:
        _fail("a creation without an event")
    return aggregate


_OF_AN_EVENT = {"originator_id", "originator_version", "originator_topic", "timestamp"}
_OF_A_CONTRACT = {"event_id", "occurred_at"}


def _difference(expected: Sequence[BaseModel], happened: Sequence[BaseModel]) -> str:
    """Empty when they are the same."""
    if [_compared(each) for each in expected] == [_compared(each) for each in happened]:
        return ""
    lines = ndiff(_described(expected), _described(happened))
    return "\n".join(line for line in lines if not line.startswith("?"))


def _compared(fact: BaseModel) -> tuple[type[BaseModel], dict[str, object]]:
    left_out = _OF_A_CONTRACT if isinstance(fact, Contract) else _OF_AN_EVENT
    return type(fact), {name: value for name, value in fact if name not in left_out}


def _described(facts: Sequence[BaseModel]) -> list[str]:
    lines = []
    for class_, fields in map(_compared, facts):
        lines += [class_.__qualname__, *(f"    {name} = {value!r}" for name, value in fields.items())]
    return lines


def _changed_fields(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    lines = []
    for name in dict(before) | dict(after):
        if name not in before or name not in after or before[name] != after[name]:
            lines += [f"{sign} {name} = {of[name]!r}" for sign, of in (("-", before), ("+", after)) if name in of]
    return "\n".join(lines)


def _fail(message: str, cause: Exception | None = None) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(message) from cause
