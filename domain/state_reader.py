"""From the stored state of an event, and its identity, to the event.

The state lacks the identity, which stands in columns. To write it into the JSON, only to have it parsed and checked
again, costs a quarter of all that reading an event costs. So the class's own schema is used with one change: the two
fields of the identity are filled in afterwards. All others are validated by the same rules as ever.
"""

from collections.abc import Callable
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, to_json
from pydantic_core.core_schema import callable_schema, with_default_schema

from domain.base import Aggregate, Stored

StateReader = Callable[[Stored, bytes], Aggregate.Event | None]
"""Given the stored event, for its identity, and its state as JSON, of the class's own version. An event comes back
complete and valid. Raises pydantic.ValidationError when it would not be, or gives None."""


def state_reader(event_class: type[Aggregate.Event]) -> StateReader:
    """How the events of this class are read. Make it once: it builds a validator."""
    validator = _validator_without_identity(event_class)
    return _whole(event_class) if validator is None else _filled_in(validator)


def _filled_in(validator: SchemaValidator) -> StateReader:
    validate = validator.validate_json

    def read(stored: Stored, state: bytes) -> Aggregate.Event:
        event: Aggregate.Event = validate(state)
        fields = event.__dict__  # it is frozen for all others, who have not seen it yet
        fields["originator_id"] = str(stored.originator_id)
        fields["originator_version"] = stored.originator_version
        given = event.__pydantic_fields_set__
        given.add("originator_id")
        given.add("originator_version")
        return event

    return read


def _whole(event_class: type[Aggregate.Event]) -> StateReader:
    # The validator itself: model_validate_json spends as much again on looking at its options.
    validate = event_class.__pydantic_validator__.validate_json

    def read(stored: Stored, state: bytes) -> Aggregate.Event | None:
        if not state.startswith(b"{"):
            return None
        originator_id, version = str(stored.originator_id), stored.originator_version
        identity = b'{"originator_id":%s,"originator_version":%d,' % (to_json(originator_id), version)
        event: Aggregate.Event = validate(identity + state[1:])
        named_alike = event.originator_id == originator_id and event.originator_version == version
        return event if named_alike else None  # the last of two counts, and the state's comes last

    return read


_IDENTITY = {"originator_id": "str", "originator_version": "int"}
_NOT_IN_THE_STATE = with_default_schema(callable_schema(), default=None)  # nothing in JSON is a callable


def _validator_without_identity(event_class: type[Aggregate.Event]) -> SchemaValidator | None:
    """It leaves the two fields None, and refuses a state that has them.

    None when a rule may look at them, and when this pydantic does not let the schema be changed in this way.
    """
    try:
        validator = _built(event_class)
        return validator if validator and _asks_for_no_identity(validator) else None
    except Exception:  # noqa: BLE001  whatever it is: the class is read whole then, which is right, only slower
        return None


def _built(event_class: type[Aggregate.Event]) -> SchemaValidator | None:
    schema: dict[str, Any] = dict(event_class.__pydantic_core_schema__)
    around = schema if schema["type"] == "definitions" else None
    model = _without_identity(schema["schema"] if around else schema)
    if model is None or _looks_at_other_fields(schema):
        return None
    # Without the last argument pydantic would take the finished validator of the class in place of this one. It is
    # no public argument: a later pydantic may refuse it, or take no notice.
    return SchemaValidator(around | {"schema": model} if around else model, model.get("config"), _use_prebuilt=False)


def _asks_for_no_identity(validator: SchemaValidator) -> bool:
    """False when it is the finished validator of the class after all: a state that names another event would pass."""
    try:
        validator.validate_json(b"{}")
    except ValidationError as error:
        return _IDENTITY.keys().isdisjoint(name for each in error.errors() for name in each["loc"])
    return True


def _without_identity(model: dict[str, Any]) -> dict[str, Any] | None:
    """None when there is a rule for the model as a whole, or for one of the two fields."""
    if model["type"] != "model" or model["schema"]["type"] != "model-fields":
        return None
    if model.get("custom_init") or model.get("post_init"):
        return None
    if any(option.startswith("str_") for option in model.get("config") or ()):  # it holds for all text, this too
        return None
    fields = dict(model["schema"]["fields"])
    for name, kind in _IDENTITY.items():
        if fields[name]["schema"] != {"type": kind}:
            return None
        fields[name] = fields[name] | {"schema": _NOT_IN_THE_STATE}
    return model | {"schema": model["schema"] | {"fields": fields}}


def _looks_at_other_fields(schema: object) -> bool:
    """Whether a function somewhere in it is shown the fields that were validated before its own."""
    if isinstance(schema, dict):
        if schema.get("type") == "with-info" or schema.get("default_factory_takes_data"):
            return True
        return any(map(_looks_at_other_fields, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_looks_at_other_fields, schema))
