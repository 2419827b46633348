"""Waiting between attempts: longer each time, at random, and over at once when told to stop."""

import random
from threading import Event


class Backoff:
    """Exponential with jitter: the n-th wait is between base / 2 and min(cap, base * 2^n) seconds, at random."""

    def __init__(self, base: float = 0.1, cap: float = 5.0) -> None:
        self._base, self._cap = base, cap
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """Waits since the last reset."""
        return self._attempts

    def wait(self, stop: Event) -> bool:
        """Waits its turn. True when it was told to stop meanwhile."""
        return stop.wait(self.next_delay())

    def next_delay(self) -> float:
        """Seconds to wait now; counts as an attempt."""
        longest = min(self._cap, self._base * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 60)
        return random.uniform(self._base / 2, longest)  # noqa: S311

    def reset(self) -> None:
        self._attempts = 0
