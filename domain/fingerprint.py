"""Which code made a snapshot? A text that changes when the same events might come to make another state."""

import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any

from domain.aggregate_state import CannotSnapshot, field_annotations, state_adapter
from domain.base import Aggregate, event_classes

_LEFT_OUT = {"snapshot_every", "snapshot_version", "__module__", "__qualname__", "__doc__"}


@cache
def fingerprint(class_: type[Aggregate]) -> str:
    """32 hexadecimal digits, the same in every process that runs this code on this version of Python.

    It covers the fields of the aggregate and of its events, with their types to any depth, and the code and
    constants in these classes (`class_version` is one). It errs on the safe side: a change of code that makes
    no difference costs a replay. It does not see functions outside of these classes; for those there is
    `snapshot_version`. Raises CannotSnapshot.
    """
    adapter = state_adapter(class_)
    try:
        maker = {
            "state": _without_words(adapter.json_schema()),
            "while unset": adapter.dump_python(_class_attributes(class_), mode="json"),
            "code": [_content(base) for base in _below(class_, Aggregate)],
            "events": {each.TOPIC: _event(each) for each in event_classes(class_)},
        }
    except Exception as error:
        raise CannotSnapshot(class_.TOPIC, f"its annotations make no schema ({type(error).__name__})") from error
    return sha256(json.dumps(maker, sort_keys=True).encode()).hexdigest()[:32]


def _class_attributes(class_: type[Aggregate]) -> dict[str, Any]:
    return {name: getattr(class_, name) for name in field_annotations(class_) if hasattr(class_, name)}


def _event(class_: type[Aggregate.Event]) -> list[Any]:
    """Its fields too: where a stored event can no longer be read, a snapshot must not hide it."""
    schema = _without_words(class_.model_json_schema())
    return [schema, *(_content(base) for base in _below(class_, Aggregate.Event))]


def _without_words(schema: Any) -> Any:
    """Titles and descriptions come from names and docstrings."""
    if isinstance(schema, list):
        return [_without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_words(value)
        for name, value in schema.items()
        if not (name in ("title", "description") and isinstance(value, str))
    }


def _below(class_: type, base: type) -> tuple[type, ...]:
    return class_.__mro__[: class_.__mro__.index(base)]


def _content(class_: type) -> dict[str, Any]:
    """Functions, also those in properties, static and class methods, and plain constants, by name."""
    content = {}
    for name, value in vars(class_).items():
        if name in _LEFT_OUT:
            continue
        if functions := list(_functions(value)):
            content[name] = [[_of_code(each.__code__), _of_constant(each.__defaults__)] for each in functions]
        elif isinstance(value, _PLAIN):
            content[name] = _of_constant(value)
    return content


def _functions(value: object) -> Iterator[FunctionType]:
    for name in ("__func__", "fget", "fset", "func", "decorated_func"):
        inner = getattr(value, name, None)
        if isinstance(inner, FunctionType):
            yield inner
    if isinstance(value, FunctionType):
        yield value


_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)


def _of_code(code: CodeType) -> list[Any]:
    return [code.co_code.hex(), code.co_names, code.co_varnames, [_of_constant(each) for each in code.co_consts]]


def _of_constant(value: object) -> Any:
    """Never the repr of an object that is not plain: it may hold an address, and differ with every process."""
    if isinstance(value, CodeType):
        return _of_code(value)
    if isinstance(value, tuple):
        return [_of_constant(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(json.dumps(_of_constant(each)) for each in value)
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__
