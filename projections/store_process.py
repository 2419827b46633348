"""One process of a projection that is fed by the store: a thread for each shard it works on, begun again when the
number of shards has changed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import monotonic

from domain.errors import CounterfoilError
from infrastructure import bounded
from infrastructure.hints import NOTIFY_PROJECTED, HintListener, HintSender
from infrastructure.outbox import Outbox
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import beat, keep_running
from projections import positions
from projections.base import Projection
from projections.store_feed import ShardsChanged
from projections.store_runner import ShardRunner

logger = logging.getLogger(__name__)

_TURN = 0.25


@dataclass(eq=False)
class NoSuchShard(CounterfoilError):
    """A process was told to work on shards that the projection does not have. shards: how many it has, from 0."""

    projection: str
    asked: tuple[int, ...]
    shards: int

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.asked))
        return f"{self.projection!r} has {self.shards} shards, numbered from 0; there is no {numbers}."


class StoreRunner:
    """`StoreRunner(projection, outboxes, dsn, settings).run(stop)` works on every shard that nobody else works on.

    Any number of processes may run: what one leaves, by stopping or by dying, another takes over.
    """

    def __init__(
        self,
        projection: Projection,
        outboxes: Sequence[Outbox],
        dsn: str,
        settings: Settings,
        only: Sequence[int] = (),
    ) -> None:
        """only: these shards and no others, to share the work out among processes."""
        self._projection, self._outboxes, self._dsn, self._settings = projection, outboxes, dsn, settings
        self._only = tuple(only)
        self.name = projection.consumer_name
        self._runners: Sequence[ShardRunner] = ()

    def run(self, stop: Event) -> None:
        """Until told to stop, within `stop_grace`. Raises NoSuchShard, and psycopg's errors before it has begun."""
        listener = HintListener(self._dsn, self._wake, name=f"{self.name}-hints")
        applied = HintSender(self._dsn, NOTIFY_PROJECTED)
        listener.start()
        try:
            while not stop.is_set():
                self._run_shards(self.shards(), applied, stop)
        finally:
            applied.close()
            bounded.within(1.0, listener.stop, "projection-listener-stop")

    def shards(self) -> list[int]:
        """Those that this process is for. A projection that has never run is given its first position here."""
        with connect(self._dsn, application_name=f"counterfoil project {self.name}") as connection:
            positions.begin(connection, self.name, self._projection.version)
            there = [place.shard for place in positions.read(connection, self.name)]
        unknown = tuple(shard for shard in self._only if shard not in there)
        if unknown:
            raise NoSuchShard(self.name, unknown, len(there))
        return [shard for shard in there if shard in self._only or not self._only]

    def _run_shards(self, shards: Sequence[int], applied: HintSender, stop: Event) -> None:
        """Until told to stop, or until their number has changed."""
        over = Event()
        self._runners = [self._runner(shard, applied) for shard in shards]
        threads = [
            Thread(
                target=keep_running,
                args=(f"{self.name}-{shard}", partial(_until_changed, runner, over), over),
                name=f"{self.name}-{shard}",
                daemon=True,
            )
            for shard, runner in zip(shards, self._runners, strict=True)
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(_TURN) and not over.is_set():
            beat(self.name)
        over.set()
        until = monotonic() + self._settings.stop_grace
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))

    def _runner(self, shard: int, applied: HintSender) -> ShardRunner:
        return ShardRunner(self._projection, self._outboxes, self._dsn, self._settings, shard, applied)

    def _wake(self) -> None:
        for runner in self._runners:
            runner.wake()


def _until_changed(runner: ShardRunner, over: Event, stop: Event) -> None:
    try:
        runner.run(stop)
    except ShardsChanged as change:
        logger.info("the number of shards has changed", extra={"projection": change.projection})
        over.set()
