"""The root of the error family, and the one error that means "the business said no"."""

from dataclasses import dataclass


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
