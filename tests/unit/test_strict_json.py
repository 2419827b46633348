"""Names that occur twice in one object are found, wherever and however they are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from domain.strict_json import has_each_name_once, repeated_names

NAMES = st.sampled_from(["a", "b", ":", '"', "\\", 'a":', "\N{SNOWMAN}"])
WHITE = st.text(" \t\n\r", max_size=2)


def written(name: str, value: str, before: str, after: str) -> str:
    return f"{before}{json.dumps(name)}{after}:{before}{value}{after}"


def within(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(values, max_size=4).map(lambda parts: f"[{','.join(parts)}]")
    fields = st.lists(st.builds(written, NAMES, values, WHITE, WHITE), max_size=4)
    return st.one_of(lists, fields.map(lambda parts: f"{{{','.join(parts)}}}"))


LEAVES = st.one_of(NAMES.map(json.dumps), st.sampled_from(["1", "null", "-2.5e3"]))
OBJECTS = within(st.recursive(LEAVES, within, max_leaves=12))


@given(OBJECTS)
def test_the_quick_look_never_passes_a_name_that_occurs_twice(text: str) -> None:
    value = text.encode()
    if has_each_name_once(value, from_json(value)):
        assert repeated_names(value) == 0


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', '{"a":1,"a" :2}', '{"a" : 1, "b":[{"c":1,"\\u0063":2}]}', '[{"a":1},{"b":{"a":1,"a":1}}]'],
)
def test_a_name_that_occurs_twice_is_found(text: str) -> None:
    assert not has_each_name_once(text.encode(), from_json(text))
    assert repeated_names(text.encode()) == 1


def test_an_ordinary_message_needs_no_more_than_the_quick_look() -> None:
    value = b'{"eventId":"evt_1","occurredAt":"2026-09-29T10:30:00Z","lines":[{"sku":"a","quantity":1},{"sku":"b"}]}'
    assert has_each_name_once(value, from_json(value))


@pytest.mark.parametrize(
    "value",
    [b'{"a":' + b"[" * 199 + b"]" * 199 + b"}", b'{"a":%s}' % (b"9" * 4300), b'{"a":-%s}' % (b"9" * 4300)],
    ids=["deep", "long", "long and negative"],
)
def test_the_quick_look_takes_the_deepest_and_longest_that_the_parser_takes(value: bytes) -> None:
    assert has_each_name_once(value, from_json(value))


def test_who_writes_spaces_is_read_a_second_time() -> None:
    value = b'{"a": 1, "b": 2}'
    assert not has_each_name_once(value, from_json(value))
    assert repeated_names(value) == 0
