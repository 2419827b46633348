"""Many events of one key, on their way in one process: they are stored, relayed, and written down by a projection
that nothing but the inbox keeps from writing twice. `python -m tests.chaos.parcels NAME`.
"""

import os
import sys
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event, Thread

from psycopg import Connection

from domain.contracts import Contract
from infrastructure import logs
from infrastructure.postgres import connect
from infrastructure.relay_loop import RelayLoop
from infrastructure.settings import Settings
from infrastructure.supervisor import Loop, stop_on_signals
from projections.base import Projection
from projections.runner import Runner
from tests.support.parcels import ParcelMoved, Parcels, parcel_outbox

TOPIC = "parcels.moved.v1"
CONSUMER = "chaos-moves"
PARCELS = 5
PAUSE = 0.01

CLOSED = Path(os.environ.get("CHAOS_CLOSED", "closed"))
"""Once this file is there, nothing more is written."""

CREATE = "CREATE TABLE moves (place bigserial, parcel text NOT NULL, step integer NOT NULL)"


class Moves(Projection):
    """No constraint, no look at what is there."""

    consumer_name = CONSUMER
    contracts = parcel_outbox(TOPIC).contracts

    def handle(self, contract: Contract, tx: Connection) -> None:
        assert isinstance(contract, ParcelMoved)
        tx.execute("INSERT INTO moves (parcel, step) VALUES (%s, %s)", (contract.parcel_id, contract.step))


def move(dsn: str, name: str, stop: Event) -> None:
    """Each life has parcels of its own, so that nobody asks which step comes next."""
    with closing(connect(dsn, application_name="chaos parcels")) as store:
        parcels = Parcels(store)
        for number in count():
            if stop.wait(PAUSE) or CLOSED.exists():
                return
            parcels.move(f"{name}-{os.getpid()}-{number % PARCELS}")


def until_stopped(dsn: str, name: str, stop: Event) -> None:
    """A move whose reply was lost may be stored or not; these parcels move no more, others do."""
    lives = count()
    while not (stop.is_set() or CLOSED.exists()):
        try:
            move(dsn, f"{name}.{next(lives)}", stop)
        except Exception:  # noqa: BLE001  whatever was cut
            stop.wait(0.3)


def main(name: str) -> None:
    stop, settings = stop_on_signals(), Settings.load()
    logs.configure("text", "INFO")
    store, inventory = settings.required_store_dsn(), os.environ["COUNTERFOIL_INVENTORY_DSN"]
    loops = [
        Loop("chaos-relay", RelayLoop(parcel_outbox(TOPIC), settings).run, grace=10.0),
        Loop("chaos-runner", Runner(Moves(), inventory, settings).run, grace=10.0),
    ]
    for loop in loops:
        loop.start()
    Thread(target=until_stopped, args=(store, name, stop), daemon=True).start()
    stop.wait()
    ending = [Thread(target=loop.stop) for loop in loops]
    for each in ending:
        each.start()
    for each in ending:
        each.join()
    sys.exit(1 if any(loop.alive for loop in loops) else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
