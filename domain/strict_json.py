"""What a JSON parser lets pass and we do not."""

import json
from typing import Any

from pydantic_core import to_json


def repeated_names(value: bytes) -> int:
    """How many names occur more than once in their object. Readers differ on which one counts, so that two
    of them would see two things; RFC 7493 (2.3) forbids it.

    value: JSON that a parser has accepted.
    """
    repeated = 0

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        found = dict(pairs)
        repeated += len(pairs) - len(found)
        return found

    # Numbers are not built: that has no limit but time, or a limit of Python's own.
    json.loads(value, object_pairs_hook=look, parse_int=_no_number, parse_float=_no_number)
    return repeated


def has_each_name_once(value: bytes, parsed: Any) -> bool:
    """A quick look: True only when no object has a name twice. After False, `repeated_names` counts.

    parsed: the value as a parser sees it that keeps one of several. When that, written again, is the value to the
    byte, nothing was dropped. So it is with all that the house writes; who writes spaces is read a second time.
    """
    return to_json(parsed) == value


def _no_number(_digits: str) -> None:
    return None
