"""A redrive as a process of its own: `python -m tests.support.redrive_program EVENT`.

It releases the entries of order 1 of the consumer `tally` in the database DSN, says which event it handles, and
never comes to the end of handling EVENT.
"""

import os
import sys
import time
from contextlib import closing
from threading import Event

from psycopg import Connection

from domain.contracts import Contract
from infrastructure.postgres import connect
from projections.entries import ParkedKey
from projections.redriving import Redriver
from tests.support.tally import Tally


def main(last: str) -> None:
    def then(contract: Contract, tx: Connection) -> None:
        print(f"handling {contract.event_id}", flush=True)
        if contract.event_id == last:
            time.sleep(600)

    with closing(connect(os.environ["DSN"], application_name="redrive")) as connection:
        Redriver(Tally(then=then), connection).redrive(ParkedKey(b"ord_1"), Event())


if __name__ == "__main__":
    main(sys.argv[1])
