"""What ends in a log: a constant message and fields, and of an exception never its text."""

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from pydantic_core import from_json

from infrastructure.logs import JsonLines, TextLines, error_fields

SECRET = "s3cret"
FOLDERS = ("domain", "infrastructure", "projections", "counterfoil")


def raised(work: object) -> Exception:
    try:
        work()  # type: ignore[operator]
    except ValueError as error:
        return error
    raise AssertionError("did not fail")


def ours() -> None:
    json.loads(SECRET)


def test_an_exception_is_told_by_its_kind_and_its_place_outside_of_libraries() -> None:
    fields = error_fields(raised(lambda: from_json(SECRET)))
    assert (fields["error"], str(fields["at"]).partition(":")[0]) == ("ValueError", "test_logs.py")


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert error_fields(KeyError(SECRET)) == {"error": "KeyError", "at": "?"}


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_an_exception_that_a_library_logs_becomes_fields(formatter: logging.Formatter) -> None:
    try:
        ours()
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info(), "position": 7})
    line = formatter.format(record)
    assert "JSONDecodeError" in line
    assert "position" in line
    assert SECRET not in line
    assert "\n" not in line


def test_no_code_of_ours_hands_an_exception_to_the_log() -> None:
    """Whoever embeds it has another formatter, and would print the text."""
    root = Path(__file__).parents[2]
    sources = [path for folder in FOLDERS for path in (root / folder).rglob("*.py") if path.name != "logs.py"]
    assert sources
    assert [path for path in sources if re.search(r"exc_info|logger\.exception", path.read_text())] == []
