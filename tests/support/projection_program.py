"""A runner as a process of its own: `python -m tests.support.projection_program BEHAVIOUR`.

It counts events (tests.support.tally) on TOPIC as NAME into the database DSN, and says on stdout what it does.
"""

import os
import sys
import time
from collections.abc import Callable
from threading import Event

from psycopg import Connection

from domain.contracts import Contract
from infrastructure import logs
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber
from infrastructure.supervisor import keep_running, stop_on_signals
from projections.runner import Runner
from tests.support.tally import Tally


def say(line: str) -> None:
    print(line, flush=True)


def _apply(contract: Contract, tx: Connection) -> None:
    pass


def _slowly(contract: Contract, tx: Connection) -> None:
    say(f"handling {contract.key}")
    time.sleep(3.0)
    say(f"handled {contract.key}")


def _in_vain(contract: Contract, tx: Connection) -> None:
    say(f"handling {contract.key}")
    raise RuntimeError


def _in_the_database(contract: Contract, tx: Connection) -> None:
    say(f"handling {contract.key}")
    tx.execute("SELECT pg_sleep(25)")


class _StopsBeforeTheOffset(Subscriber):
    """What is applied is committed in the database, and no offset in Kafka ever."""

    def commit(self, wait: float = 0.0) -> bool:
        say("applied")
        time.sleep(600)
        return False


HANDLERS: dict[str, Callable[[Contract, Connection], None]] = {
    "slowly": _slowly,
    "in-vain": _in_vain,
    "in-the-database": _in_the_database,
}


def main(behaviour: str) -> None:
    logs.configure("text", "INFO")
    settings, stop, name = Settings.load(), stop_on_signals(), os.environ["NAME"]
    tally = Tally(name, (os.environ["TOPIC"],), HANDLERS.get(behaviour, _apply))
    runner = Runner(tally, os.environ["DSN"], settings)
    say("running")
    if behaviour == "stops-before-the-offset":
        _run_without_offsets(runner, settings, name, stop)
    else:
        keep_running(name, runner.run, stop)
    say("ended")


def _run_without_offsets(runner: Runner, settings: Settings, name: str, stop: Event) -> None:
    with _StopsBeforeTheOffset(settings, name, [os.environ["TOPIC"]]) as subscriber:
        while not stop.is_set():
            runner.step(subscriber, stop)


if __name__ == "__main__":
    main(sys.argv[1])
