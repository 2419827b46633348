"""What several commands take. A wrong one is wrong usage, said before anything is opened."""

import getpass
import math
import socket

import typer
from pydantic import TypeAdapter, ValidationError

from domain.money import MINOR_UNITS
from domain.values import Identifier

_identifier: TypeAdapter[str] = TypeAdapter(Identifier)

AN_IDENTIFIER = "1 to 128 characters, no control character, no white space at either end"


def is_identifier(text: str) -> bool:
    try:
        _identifier.validate_python(text, strict=True)
    except ValidationError:
        return False
    return True


def identifier(text: str | None) -> str | None:
    if text is None or is_identifier(text):
        return text
    raise typer.BadParameter(f"must be {AN_IDENTIFIER}")


def currency(code: str) -> str:
    """Empty where an option was not given and has no default."""
    if code and code not in MINOR_UNITS:
        raise typer.BadParameter("not an ISO 4217 currency code, such as EUR")
    return code


def seconds_to_wait(seconds: float) -> float:
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    raise typer.BadParameter("must be a number of seconds, 0 or more")


def a_reason(text: str) -> str:
    if text.strip():
        return text.strip()
    raise typer.BadParameter("must say why, in a few words")


def whoever_asks() -> str:
    """The person or the account behind this command, for a record of what it decided."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
