"""Tests of aggregates that say given, when, then: what they let pass, what they find, and how they say so."""

from dataclasses import field
from textwrap import dedent
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from domain.aggregate_state import CannotSnapshot
from domain.application import Application
from domain.base import Aggregate, DomainError, DomainEvent
from domain.contracts import Contract
from domain.testing import ToContracts, contract, event, given, given_application


class Lamp(Aggregate, topic="lamp"):
    class Hung(Aggregate.Created):
        room: str

    class Lit(Aggregate.Event):
        watts: int
        settings: Any = None

        def apply(self, lamp: "Lamp") -> None:
            lamp.watts = self.watts

    room: str
    watts: int = field(default=0, init=False)

    @classmethod
    def hang(cls, lamp_id: str, room: str) -> "Lamp":
        if room == "bath":
            raise DomainError("too_wet", lamp_id, "No lamps in bathrooms")
        return cls._create(cls.Hung, id=lamp_id, room=room)

    def light(self, watts: int, settings: Any = None) -> None:
        if watts > 100:
            raise DomainError("too_bright", self.id, "At most 100 watts")
        if watts != self.watts:
            self.trigger_event(self.Lit, watts=watts, settings=settings)


class LampOfSnapshots(Lamp, topic="lamp_of_snapshots"):
    snapshot_every: ClassVar[int | None] = 10

    class Labelled(Aggregate.Event):
        def apply(self, lamp: Any) -> None:
            lamp.label = "not declared"

    def label_it(self) -> None:
        self.trigger_event(self.Labelled)


class Lamps(Application):
    def hang(self, lamp_id: str, room: str = "hall") -> str:
        self.save(Lamp.hang(lamp_id, room))
        return f"{lamp_id} hangs"


class LampLit(Contract):
    topic: ClassVar[str] = "lamps.lit.v1"
    watts: int

    @classmethod
    def contract_type(cls) -> str:
        return "LampLit"

    @classmethod
    def contract_version(cls) -> int:
        return 1


def tell(lamp_event: DomainEvent, event_id: Any) -> tuple[Contract, ...]:
    return (contract(LampLit, watts=lamp_event.watts),) if isinstance(lamp_event, Lamp.Lit) else ()


HUNG = event(Lamp.Hung, room="hall")
LIT = event(Lamp.Lit, watts=60)


def failure(test: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        test()
    return str(failed.value)


# --- What passes --------------------------------------------------------------------------------------


def test_a_decision_is_tested_in_one_line() -> None:
    given(Lamp, HUNG).when(lambda lamp: lamp.light(60)).then(LIT)


def test_a_creation_is_tested_in_one_line() -> None:
    given(Lamp).when(lambda: Lamp.hang("l-1", "hall")).then(HUNG)


def test_that_nothing_happens_is_tested_in_one_line() -> None:
    given(Lamp, HUNG, LIT).when(lambda lamp: lamp.light(60)).then_nothing()


def test_a_refusal_is_tested_in_one_line() -> None:
    assert given(Lamp, HUNG).when(lambda lamp: lamp.light(101)).then_refused("too_bright").reason == "At most 100 watts"
    given(Lamp).when(lambda: Lamp.hang("l-1", "bath")).then_refused("too_wet")


def test_what_is_published_is_tested_in_one_line() -> None:
    given(Lamp, HUNG).when(lambda lamp: lamp.light(60)).then_published(tell, contract(LampLit, watts=60))


def test_the_answer_is_there_for_a_closer_look() -> None:
    assert given(Lamp, HUNG).when(lambda lamp: lamp.light(60)).then(LIT).watts == 60
    assert given_application(Lamps()).when(lambda lamps: lamps.hang("l-1")).then(HUNG) == "l-1 hangs"


def test_the_history_is_in_force_with_one_id_and_versions_from_one() -> None:
    history = [event(Lamp.Hung, room="hall", originator_id="l-7"), LIT, event(Lamp.Lit, watts=7)]
    lamp = given(Lamp, *history).when(lambda lamp: lamp.light(8)).then(event(Lamp.Lit, watts=8))
    assert (lamp.id, lamp.version) == ("l-7", 4)


def test_an_application_tells_of_its_last_step_only() -> None:
    hung_before = given_application(Lamps(), lambda lamps: lamps.hang("l-1"), lambda lamps: lamps.hang("l-2"))
    hung_before.when(lambda lamps: lamps.hang("l-3", "attic")).then(event(Lamp.Hung, room="attic"))
    hung_before.when(lambda lamps: lamps.hang("l-4", "bath")).then_refused("too_wet")


# --- What fails, and how it says so -------------------------------------------------------------------


def test_other_fields_are_shown_line_by_line() -> None:
    message = failure(lambda: given(Lamp, HUNG).when(lambda lamp: lamp.light(61)).then(LIT))
    assert message == dedent(
        """\
        other events than expected (- expected, + happened)
          Lamp.Lit
        -     watts = 60
        +     watts = 61
              settings = None"""
    )


def test_an_event_too_many_or_too_few_or_of_another_class_fails() -> None:
    lit = given(Lamp, HUNG).when(lambda lamp: lamp.light(60))
    assert "+ Lamp.Lit" in failure(lit.then)
    assert "+ Lamp.Lit" in failure(lit.then_nothing)
    assert "- Lamp.Lit" in failure(lambda: lit.then(LIT, LIT))
    assert "- Lamp.Hung" in failure(lambda: lit.then(HUNG))


def test_a_refusal_that_was_not_expected_names_its_rule() -> None:
    refused = given(Lamp, HUNG).when(lambda lamp: lamp.light(101))
    for then in (lambda: refused.then(LIT), refused.then_nothing, lambda: refused.then_published(tell)):
        assert "refused by 'too_bright'" in failure(then)
    assert "refused, not by 'too_dark' but by 'too_bright'" in failure(lambda: refused.then_refused("too_dark"))


def test_a_refusal_that_did_not_come_shows_what_happened_instead() -> None:
    lit = given(Lamp, HUNG).when(lambda lamp: lamp.light(60))
    assert "not refused by 'too_bright'\n+ Lamp.Lit" in failure(lambda: lit.then_refused("too_bright"))


@pytest.mark.parametrize("told", [(), (contract(LampLit, watts=61),), (contract(LampLit, watts=60),) * 2])
def test_other_contracts_than_expected_fail(told: tuple[Contract, ...]) -> None:
    to_contracts: ToContracts = tell
    lit = given(Lamp, HUNG).when(lambda lamp: lamp.light(60))
    assert "other contracts than expected" in failure(lambda: lit.then_published(to_contracts, *told))


def test_an_error_that_is_no_refusal_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        given(Lamp, HUNG).when(lambda lamp: lamp.light(1 // 0))


# --- What no test has to ask for ----------------------------------------------------------------------


def test_a_state_that_was_changed_without_an_event_fails() -> None:
    message = failure(lambda: given(Lamp, HUNG).when(lambda lamp: setattr(lamp, "room", "attic")))
    assert message.endswith("\n- room = 'hall'\n+ room = 'attic'")


def test_an_event_that_does_not_come_back_as_it_was_fails() -> None:
    message = failure(lambda: given(Lamp, HUNG).when(lambda lamp: lamp.light(60, settings=(1, 2))))
    assert message.startswith("Lamp.Lit does not come back")
    assert message.endswith("\n- settings = (1, 2)\n+ settings = [1, 2]")


def test_a_state_of_which_no_snapshot_can_be_taken_fails_where_snapshots_are_asked_for() -> None:
    hung = event(LampOfSnapshots.Hung, room="hall")
    given(LampOfSnapshots, hung).when(lambda lamp: lamp.light(1)).then(event(LampOfSnapshots.Lit, watts=1))
    with pytest.raises(CannotSnapshot, match="label"):
        given(LampOfSnapshots, hung).when(lambda lamp: lamp.label_it())


# --- Mistakes in the test itself ----------------------------------------------------------------------


def test_a_field_that_is_missing_unknown_or_wrong_is_refused_by_name() -> None:
    for fields, name in [({}, "watts"), ({"watts": 1, "volts": 1}, "volts"), ({"watts": "1"}, "watts")]:
        with pytest.raises(ValidationError, match=name):
            event(Lamp.Lit, **fields)


def test_a_history_of_another_aggregate_or_without_its_beginning_is_refused() -> None:
    for history in [(event(LampOfSnapshots.Hung, room="hall"),), (LIT,), (HUNG, HUNG)]:
        with pytest.raises(TypeError, match="Lamp"):
            given(Lamp, *history).when(lambda lamp: None)
