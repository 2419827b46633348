"""How a loop that reads the store by position rests: until a hint, or a time that is shorter while there is traffic."""

from collections.abc import Callable
from threading import Event
from time import monotonic

from infrastructure import metrics
from infrastructure.settings import Settings

_SLICE = 0.25
"""Seconds between two signs of life while there is nothing else to do."""
_BUSY = 1.0
"""Seconds after the last event for which it looks for the next one more often."""


class Rest:
    """For one loop. `wake` may be called from any thread."""

    def __init__(self, settings: Settings, keep_alive: Callable[[], object]) -> None:
        """keep_alive: called several times a second while it rests; what it raises ends the rest."""
        self._settings, self._keep_alive = settings, keep_alive
        self._woken = Event()
        self._moved_at = float("-inf")

    def wake(self) -> None:
        """Ends the rest at once: something may have been stored, or it was told to stop."""
        self._woken.set()

    def moved(self) -> None:
        """There was something: the next one may follow soon."""
        self._moved_at = monotonic()

    def until_the_next(self, stop: Event) -> None:
        """Until a hint, or until it is time to look by itself: a lost hint costs that much."""
        busy = monotonic() - self._moved_at < _BUSY
        longest = self._settings.relay_poll_busy if busy else self._settings.relay_poll_idle
        woken = self._wait(longest, self._woken, stop)
        self._woken.clear()
        metrics.WAKE_UPS.labels("hint" if woken else "poll").inc()

    def for_seconds(self, seconds: float, stop: Event) -> None:
        """No hint ends it: what it waits for is something else."""
        self._wait(seconds, stop, stop)

    def _wait(self, seconds: float, woken: Event, stop: Event) -> bool:
        """True when it was woken before the time was over."""
        until = monotonic() + seconds
        while not stop.is_set() and (left := until - monotonic()) > 0:
            if woken.wait(min(_SLICE, left)):
                return True
            self._keep_alive()
        return False
