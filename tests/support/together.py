"""Several threads at once: started at the same moment, each one's error the test's error."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


def together(calls: Sequence[Callable[[], T]], within: float = 60.0) -> list[T]:
    """What each call returned. Raises what the first of them raised."""
    start = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait(within)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.result(within) for done in [threads.submit(run, call) for call in calls]]
