"""Wait for a condition with a deadline, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def eventually(predicate: Callable[[], T], within: float = 10.0, every: float = 0.02) -> T:
    """The first truthy value of `predicate()`, asked `every` so many seconds.

    Fails the test after `within` seconds, with the last value. What the predicate raises goes through:
    an error is never mistaken for "not yet".
    """
    deadline = time.monotonic() + within
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within:g} s; the last value was {value!r}")
        time.sleep(every)
