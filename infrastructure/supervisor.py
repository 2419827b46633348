"""Loops that must not die in silence: each turn is a beat, an error is counted and followed by a new start."""

import logging
import signal
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic

from infrastructure import metrics
from infrastructure.backoff import Backoff
from infrastructure.logs import error_fields

logger = logging.getLogger(__name__)

_LONG_ENOUGH = 60.0
"""Seconds after which a loop that failed had been well, so that its next start need not wait long."""


def beat(loop: str) -> None:
    """Called by a loop on every turn; health reads it."""
    metrics.LOOP_BEAT.labels(loop).set_to_current_time()


def keep_running(loop: str, run: Callable[[Event], None], stop: Event) -> None:
    """Runs `run(stop)` and, when it fails, runs it again after a backoff; returns when told to stop.

    `run` must end soon after `stop` is set. Errors are logged by type and counted, never swallowed unseen.
    At the end its beat is taken away: one that grows old is of a loop that hangs.
    """
    backoff = Backoff(base=0.1, cap=5.0)
    while not stop.is_set():
        beat(loop)
        started = monotonic()
        try:
            run(stop)
        except Exception as error:  # noqa: BLE001  counted and logged
            metrics.LOOP_RESTARTS.labels(loop, type(error).__name__).inc()
            logger.warning("loop failed and starts again", extra={"loop": loop} | error_fields(error))
        if monotonic() - started > _LONG_ENOUGH:
            backoff.reset()
        backoff.wait(stop)
    metrics.LOOP_BEAT.remove_by_labels({"loop": loop})


class Loop:
    """A named thread under `keep_running`, ended by `stop` within `grace` seconds."""

    def __init__(self, name: str, run: Callable[[Event], None], grace: float = 5.0) -> None:
        self._stop = Event()
        self._grace = grace
        self._thread = Thread(target=keep_running, args=(name, run, self._stop), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace: float | None = None) -> bool:
        """True when the thread has ended. grace: seconds to wait for that, if not those given before."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(self._grace if grace is None else grace)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


def stop_on_signals() -> Event:
    """An Event that SIGTERM, SIGINT or SIGHUP (a closed terminal) sets. Call it from the main thread."""
    stop = Event()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: stop.set())
    return stop
