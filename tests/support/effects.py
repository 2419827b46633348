"""External effects under test: who is called for what, and what a database knows of it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event, Lock

from psycopg import Connection

from projections.effects.queue import Effect
from projections.effects.worker import Refused, Worker

Answer = Callable[[Effect], Refused | None]


class Recorder:
    """A provider that writes down every call, and answers or fails as a test wants it to."""

    def __init__(self, then: Answer = lambda effect: None) -> None:
        self.calls: list[Effect] = []
        self._then, self._lock = then, Lock()

    def send(self, effect: Effect) -> Refused | None:
        with self._lock:
            self.calls.append(effect)
        return self._then(effect)

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.calls]


@contextmanager
def working(workers: Sequence[Worker], within: float = 30.0) -> Iterator[None]:
    """All of them work until the block ends; what one of them raises is then the test's error."""
    stop = Event()
    with ThreadPoolExecutor(len(workers)) as threads:
        done = [threads.submit(partial(worker.run, stop)) for worker in workers]
        try:
            yield
        finally:
            stop.set()
            for each in done:
                each.result(within)


def numbers(connection: Connection) -> tuple[int, int, int]:
    """How many effects wait, were sent, and have failed."""
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE sent_at IS NULL AND failed_at IS NULL), count(sent_at), count(failed_at)"
        " FROM outgoing_effects"
    ).fetchone()
    assert row is not None
    return row
