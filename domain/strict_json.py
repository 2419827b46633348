"""What a JSON parser lets pass and we do not."""

import json
import re
from typing import Any

_END_OF_A_NAME = re.compile(rb'"[ \t\n\r]*:')
"""Where a name ends, and perhaps in a few other places: a text may begin with a colon, or quote a name."""

_CONTAINERS = (dict, list)
"""What a parser makes of objects and lists: just these classes."""


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

    parsed: the value as a parser sees it that keeps one of several. What is written is at least what it sees.
    """
    return len(_END_OF_A_NAME.findall(value)) == _names_in(parsed)


def _names_in(parsed: Any) -> int:
    names, parts = (len(parsed), parsed.values()) if type(parsed) is dict else (0, parsed)
    for part in parts:
        if type(part) in _CONTAINERS:
            names += _names_in(part)
    return names


def _no_number(_digits: str) -> None:
    return None
