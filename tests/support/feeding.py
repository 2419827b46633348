"""Processes that are fed by the store, as threads of the test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from infrastructure.outbox import Outbox
from infrastructure.settings import Settings
from projections.base import Projection
from projections.store_process import StoreRunner


def settings(dsn: str, **changes: object) -> Settings:
    return Settings.model_validate({"store_dsn": dsn, **changes})


@contextmanager
def feeding(
    dsn: str,
    projection: Projection,
    outboxes: Sequence[Outbox],
    many: int = 1,
    only: Sequence[int] = (),
    **changes: object,
) -> Iterator[None]:
    """So many of them work until the block ends. only: these shards. changes: to the settings."""
    stop = Event()
    runners = [StoreRunner(projection, outboxes, dsn, settings(dsn, **changes), only) for _ in range(many)]
    threads = [Thread(target=runner.run, args=(stop,), name="feeding") for runner in runners]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive(), "a runner did not stop"
