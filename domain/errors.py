"""The root of the error family, the error that means "the business said no", and what to tell of refused values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

MOST_PROBLEMS_TOLD = 5


@dataclass(eq=False)
class CounterfoilError(Exception):
    """Root of every error that counterfoil raises on purpose.

    Subclasses are dataclasses: read their fields, never their text. The text is for people: it says
    what happened and what to do next, and holds no payload and no secret.
    """


@dataclass(eq=False)
class DomainError(CounterfoilError):
    """A business rule refused a command; nothing was stored.

    rule: stable snake_case name of the rule, for programs.
    aggregate_id: the aggregate that refused.
    reason: one sentence for people.

    What to do: change the command. The same command will be refused again.
    """

    rule: str
    aggregate_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.rule}, {self.aggregate_id})"


def problems_of(error: ValidationError, name: Callable[[str], str] = str) -> str:
    """The first few problems as "field: reason". Never a value: this ends in logs, in quarantine, in checkpoints.

    A reason is what the field's validator says, so a validator of the business must not quote what it refuses.
    name: what to call a field, for a reader who knows it by another name than ours.
    """
    problems = error.errors(include_input=False, include_context=False, include_url=False)
    places = [each["loc"] for each in problems]
    told = [
        ": ".join(filter(None, (".".join(name(str(part)) for part in each["loc"]), each["msg"])))
        for each in problems
        if not (each["type"] == "too_short" and _is_refused_within(each["loc"], places))
    ]
    more = [f"and {len(told) - MOST_PROBLEMS_TOLD} more"] if len(told) > MOST_PROBLEMS_TOLD else []
    return "; ".join(told[:MOST_PROBLEMS_TOLD] + more)


_Place = tuple[int | str, ...]


def _is_refused_within(place: _Place, places: Sequence[_Place]) -> bool:
    """pydantic does not count refused items, so that a list of one bad item is also too short for it."""
    return any(len(each) > len(place) and each[: len(place)] == place for each in places)
