"""The whole state of an aggregate as bytes and back, by the annotations of its fields."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NotRequired, get_origin, get_type_hints

from pydantic import AwareDatetime, ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from domain.base import Aggregate
from domain.errors import CounterfoilError, problems_of

_KEPT_APART = {"_id", "_version", "_pending_events"}
_TIMES = {"_created_on": AwareDatetime, "_modified_on": AwareDatetime}


@dataclass(eq=False)
class CannotSnapshot(CounterfoilError):
    """The aggregate's state cannot be written down so that it comes back the same.

    aggregate: its topic. problem: names fields, never values.
    What to do: annotate every attribute, with types that pydantic can read back, or set `snapshot_every = None`.
    """

    aggregate: str
    problem: str

    def __str__(self) -> str:
        return f"No snapshot of {self.aggregate!r} can be taken: {self.problem}."


def to_state(aggregate: Aggregate) -> bytes:
    """The state without id and version. Guarantee: `from_state` makes an equal aggregate of it.

    Raises CannotSnapshot.
    """
    class_ = type(aggregate)
    adapter = state_adapter(class_)
    fields = {name: value for name, value in vars(aggregate).items() if name not in _KEPT_APART}
    if unknown := fields.keys() - _TIMES.keys() - field_annotations(class_).keys():
        raise CannotSnapshot(class_.TOPIC, f"{', '.join(sorted(unknown))}: without an annotation in the class")
    try:
        state = adapter.dump_json(fields, warnings="error")
        same = from_state(class_, aggregate.id, aggregate.version, state) == aggregate
    except Exception as error:  # noqa: BLE001  serializers and validators of the business may raise anything
        raise CannotSnapshot(class_.TOPIC, _what(error)) from None
    if not same:
        raise CannotSnapshot(class_.TOPIC, "the state does not come back as it was")
    return state


def from_state(class_: type[Aggregate], aggregate_id: str, version: int, state: bytes) -> Aggregate:
    """An aggregate without pending events. Raises pydantic.ValidationError, which shows no values, and whatever
    the validators of the business raise."""
    fields = state_adapter(class_).validate_json(state)
    aggregate = object.__new__(class_)
    vars(aggregate).update(fields, _id=aggregate_id, _version=version, _pending_events=[])
    return aggregate


@cache
def state_adapter(class_: type[Aggregate]) -> TypeAdapter[dict[str, Any]]:
    """Strict: the fields, and nothing else. Raises CannotSnapshot."""
    try:
        hints = _TIMES | field_annotations(class_)
        # A dataclass leaves what was never set to the attribute of the class.
        fields = {name: NotRequired[hint] if hasattr(class_, name) else hint for name, hint in hints.items()}
        return TypeAdapter(with_config(_STRICT)(_MAKE_SHAPE("State", fields)))
    except Exception as error:
        raise CannotSnapshot(class_.TOPIC, f"its annotations make no schema ({type(error).__name__})") from error


def field_annotations(class_: type[Aggregate]) -> dict[str, Any]:
    ours = get_type_hints(Aggregate)
    hints = get_type_hints(class_, include_extras=True)
    return {name: hint for name, hint in hints.items() if name not in ours and get_origin(hint) is not ClassVar}


_MAKE_SHAPE: Any = TypedDict  # the type checker knows those with fields that are written down only
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def _what(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return problems_of(error)
    if isinstance(error, PydanticSerializationError):
        return "a field holds what its annotation does not allow"
    return f"a validator or serializer failed with {type(error).__name__}"
