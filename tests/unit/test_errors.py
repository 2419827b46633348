"""What may be told of a refused value: where and why, never the value."""

from typing import Annotated

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator

from domain.errors import problems_of
from domain.values import Currency

SECRET = "s3cret"


class Parcel(BaseModel):
    weight: int
    notes: tuple[int, ...] = ()

    @field_validator("weight")
    @classmethod
    def _light(cls, weight: int) -> int:
        if weight > 30:
            raise ValueError("too heavy")
        return weight


class Crate(BaseModel):
    weights: Annotated[tuple[int, ...], Field(min_length=1)]


def refusal(kind: object, json: str) -> str:
    try:
        TypeAdapter(kind).validate_json(json)
    except ValidationError as error:
        return problems_of(error)
    raise AssertionError("was accepted")


def test_each_problem_names_its_field_and_shows_no_value() -> None:
    told = refusal(Parcel, f'{{"weight": "{SECRET}", "notes": [1, "{SECRET}"]}}')
    assert told.startswith("weight: Input should be a valid integer")
    assert "; notes.1: " in told
    assert SECRET not in told


def test_what_a_validator_says_is_told() -> None:
    assert refusal(Parcel, '{"weight": 31}') == "weight: Value error, too heavy"


def test_a_problem_of_the_whole_names_no_field() -> None:
    assert refusal(int, f'"{SECRET}"').startswith("Input should be")


def test_a_refused_item_does_not_make_its_list_too_short() -> None:
    assert refusal(Crate, '{"weights": ["x"]}').startswith("weights.0: Input should be")
    assert "; " not in refusal(Crate, '{"weights": ["x"]}')
    assert "at least 1" in refusal(Crate, '{"weights": []}')


def test_an_unknown_currency_is_refused_without_a_list_of_all() -> None:
    assert refusal(Currency, '"eur"') == "not an ISO 4217 currency code"


def test_a_field_is_named_as_its_reader_knows_it() -> None:
    with pytest.raises(ValidationError) as refused:
        Parcel(weight=31)
    assert problems_of(refused.value, name=str.upper).startswith("WEIGHT: ")


def test_only_the_first_few_are_told() -> None:
    told = refusal(Parcel, '{"weight": 1, "notes": [' + ",".join(['"x"'] * 1_000) + "]}")
    assert told.endswith("; and 995 more")
    assert len(told) < 600
