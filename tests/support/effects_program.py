"""A worker for effects as a process of its own, on the database DSN: `python -m tests.support.effects_program`.

Its provider delivers, says so on stdout, and never comes to tell the worker.
"""

import os
import time

from infrastructure import logs
from infrastructure.supervisor import keep_running, stop_on_signals
from projections.effects.queue import Effect
from projections.effects.worker import Refused, Worker
from projections.notifications.projection import ORDER_CONFIRMED, PROJECTION
from projections.notifications.providers import PretendedMail


class DeliversAndIsStuck(PretendedMail):
    def send(self, effect: Effect) -> Refused | None:
        super().send(effect)
        print(f"delivered {effect.id}", flush=True)
        time.sleep(600)
        return None


def main() -> None:
    logs.configure("text", "INFO")
    dsn, stop = os.environ["DSN"], stop_on_signals()
    providers = {ORDER_CONFIRMED: DeliversAndIsStuck(dsn)}
    worker = Worker(PROJECTION.consumer_name, dsn, providers, held_seconds=float(os.environ["HELD_SECONDS"]))
    keep_running(worker.name, worker.run, stop)


if __name__ == "__main__":
    main()
