"""Runners in threads of the test, on topics and databases of the test."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event

from infrastructure.settings import Settings
from projections.base import Projection
from projections.runner import Runner


def settings(bootstrap: str, **changes: float) -> Settings:
    return Settings.model_validate({"kafka_bootstrap_servers": bootstrap, "session_timeout": 6.0, **changes})


@contextmanager
def running(runners: Sequence[Runner], within: float = 30.0) -> Iterator[None]:
    """All of them work until the block ends; what one of them raises is then the test's error."""
    stop = Event()
    with ThreadPoolExecutor(len(runners)) as threads:
        done = [threads.submit(partial(runner.run, stop)) for runner in runners]
        try:
            yield
        finally:
            stop.set()
            for each in done:
                each.result(within)


@contextmanager
def projecting(projection: Projection, dsn: str, bootstrap: str, many: int = 1, **changes: float) -> Iterator[None]:
    """`many` members of the projection's group. changes: to the settings."""
    with running([Runner(projection, dsn, settings(bootstrap, **changes)) for _ in range(many)]):
        yield
