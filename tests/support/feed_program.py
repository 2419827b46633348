"""A process of parcel counts, fed by the store: `python -m tests.support.feed_program [--slow]`.

It works on the database of the settings, and says on stdout what it does.
"""

import sys
import time

from psycopg import Connection

from domain.contracts import Contract
from infrastructure import logs
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals
from projections.store_process import StoreRunner
from tests.support.parcel_counts import OUTBOXES, ParcelCounts


def say(line: str) -> None:
    print(line, flush=True)


def _apply(contract: Contract, tx: Connection) -> None:
    pass


def _slowly(contract: Contract, tx: Connection) -> None:
    say(f"handling {contract.key}")
    time.sleep(0.2)


def main(slow: bool) -> None:
    settings, stop = Settings.load(), stop_on_signals()
    logs.configure("text", "INFO")
    projection = ParcelCounts(_slowly if slow else _apply)
    runner = StoreRunner(projection, OUTBOXES, settings.required_store_dsn(), settings)
    keep_running(runner.name, runner.run, stop)
    say("ended")


if __name__ == "__main__":
    main("--slow" in sys.argv)
