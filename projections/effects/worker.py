"""Calls providers for the effects that were asked for: one at a time, with no transaction open meanwhile."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Protocol

from infrastructure import bounded, metrics
from infrastructure.backoff import Backoff
from infrastructure.postgres import Connection, cause_of
from infrastructure.supervisor import beat
from projections.database import Database
from projections.effects.queue import Effect, Queue, count

logger = logging.getLogger(__name__)

PROVIDER_SECONDS = 20.0
"""Longest wait for a provider. What it says later is lost; it is asked again with the same key."""

HELD_SECONDS = 60.0
"""How long a worker has an effect to itself. Longer than the wait, so that two are rarely under way at once; what a
worker that was killed had taken waits this long."""

POLL = 0.5
"""Seconds between two looks for new effects."""

COUNT_INTERVAL = 10.0

_TURN = 0.1


@dataclass(frozen=True)
class Refused:
    """A provider's answer to what it will never do, however often it is asked. reason: without a value from it."""

    reason: str


class Provider(Protocol):
    """Whoever does the effects of one kind."""

    def send(self, effect: Effect) -> Refused | None:
        """Does it, under the idempotency key `effect.id`: done before under this key, it is not done again.

        None when it is done. Whatever is raised means "not now". Must have time-outs of its own; it is
        waited for PROVIDER_SECONDS at most.
        """


Providers = Mapping[str, Provider]
"""By the effect's name."""


class Worker:
    """Sends the effects of one consumer; any number may run at once."""

    def __init__(
        self,
        consumer_name: str,
        dsn: str,
        providers: Providers,
        held_seconds: float = HELD_SECONDS,
        provider_seconds: float = PROVIDER_SECONDS,
    ) -> None:
        self.name = f"{consumer_name} effects"
        self._consumer_name, self._providers, self._provider_seconds = consumer_name, providers, provider_seconds
        self._queue = Queue(consumer_name, held_seconds)
        self._database = Database(dsn, f"counterfoil effects {consumer_name}")
        self._backoff, self._count_at = Backoff(base=0.1, cap=5.0), 0.0

    def run(self, stop: Event) -> None:
        """Until told to stop. Raises psycopg.Error when the database is away: run it again, after a while."""
        try:
            while not stop.is_set():
                beat(self.name)
                if not self.step(stop):
                    stop.wait(POLL)
        finally:
            self._database.drop()

    def step(self, stop: Event) -> bool:
        """One effect, from taking it to what became of it. False when none is due."""
        connection = self._database.connection()
        self._count(connection)
        effect = self._queue.take(connection)
        if effect is None:
            return False
        problem = self._call(effect, stop)
        if problem is None:
            self._queue.sent(connection, effect)
            self._tell(effect, "sent")
            self._backoff.reset()
        elif isinstance(problem, Refused):
            self._queue.refused(connection, effect, problem.reason)
            self._tell(effect, "refused")
        else:
            self._queue.later(connection, effect, problem)
            self._tell(effect, "later", problem)
            self._backoff.wait(stop)
        return True

    def _call(self, effect: Effect, stop: Event) -> Refused | str | None:
        """None when it is done, else why not."""
        provider = self._providers.get(effect.effect)
        if provider is None:
            return "this code has no provider for it"
        answers: list[Refused | str | None] = []
        calling = bounded.start(_answering(provider, effect, answers), "effect-provider")
        until = monotonic() + self._provider_seconds
        while calling.is_alive() and monotonic() < until:
            beat(self.name)
            calling.join(_TURN)
            if stop.is_set():
                until = min(until, monotonic() + 2.0)
        return answers[0] if answers else "no answer in time"

    def _count(self, connection: Connection) -> None:
        if monotonic() < self._count_at:
            return
        self._count_at = monotonic() + COUNT_INTERVAL
        waiting, failed = count(connection, self._consumer_name)
        metrics.EFFECTS_WAITING.labels(self._consumer_name).set(waiting)
        metrics.EFFECTS_FAILED.labels(self._consumer_name).set(failed)

    def _tell(self, effect: Effect, outcome: str, problem: str | None = None) -> None:
        metrics.EFFECTS.labels(self._consumer_name, outcome).inc()
        if outcome != "sent":
            about = {"consumer": self._consumer_name, "effect": effect.id, "attempt": effect.attempts, "error": problem}
            logger.warning("effect not sent", extra=about | {"outcome": outcome})


def _answering(provider: Provider, effect: Effect, answers: list[Refused | str | None]) -> Callable[[], None]:
    def call() -> None:
        try:
            answers.append(provider.send(effect))
        except Exception as error:  # noqa: BLE001  a provider may fail in any way; its texts may quote anything
            answers.append(cause_of(error))

    return call
