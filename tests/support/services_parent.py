"""A parent of embedded services, for the tests of what happens to them when it ends.

Prints, as JSON, what there is to find later; then waits to be killed or interrupted.
"""

import json
import threading

import psycopg

from counterfoil.embedded import EmbeddedBroker, EmbeddedPostgres


def main() -> None:
    with EmbeddedPostgres() as postgres, EmbeddedBroker() as broker:
        print(json.dumps({"pids": [postgres.pid, broker.pid], "dsn": postgres.dsn()}))
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            psycopg.connect(postgres.dsn()).close()
            print("still served after the Ctrl-C")


if __name__ == "__main__":
    main()
