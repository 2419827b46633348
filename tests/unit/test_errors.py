"""What may be told of a refused value: where and why, never the value."""

from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator

from domain.errors import problems_of

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


def test_only_the_first_few_are_told() -> None:
    told = refusal(Parcel, '{"weight": 1, "notes": [' + ",".join(['"x"'] * 1_000) + "]}")
    assert told.endswith("; and 995 more")
    assert len(told) < 600
