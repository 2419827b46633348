"""How long something may take: so long, and not much longer once the process was told to stop."""

from threading import Event
from time import monotonic


class Patience:
    """Counted from when it is made."""

    def __init__(self, seconds: float, when_stopping: float) -> None:
        """when_stopping: seconds that are left once it was told to stop."""
        self._deadline, self._when_stopping = monotonic() + seconds, when_stopping
        self._stopping = False

    def is_over(self, stop: Event | None = None) -> bool:
        if stop is not None and stop.is_set() and not self._stopping:
            self._stopping, self._deadline = True, min(self._deadline, monotonic() + self._when_stopping)
        return monotonic() >= self._deadline
