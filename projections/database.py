"""The one connection of a runner: made when needed, dropped after trouble, cut when there is no more time."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from infrastructure.postgres import Connection, Timeouts, connect

TIMEOUTS = Timeouts(connect=3.0, lock=20.0, statement=30.0, idle_in_transaction=30.0)
"""lock: longer than a batch may take, because a consumer that has the same event waits for the other's outcome.
idle_in_transaction: the longest that a handler may be busy with anything but the database."""

_TURN = 0.1
"""Seconds between two looks at the stop event."""


class Database:
    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn, self._application_name = dsn, application_name
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """A connection to a server that takes writes. Raises psycopg.OperationalError."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name=self._application_name, timeouts=TIMEOUTS)
        return self._connection

    def drop(self) -> None:
        """The next `connection()` is a new one, to whichever server takes writes then."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def cut(self) -> None:
        """Ends whatever the connection waits for, from any thread; the transaction is then rolled back."""
        connection = self._connection
        if connection is None:
            return
        with suppress(Exception):  # the server lets go of locks at once, if it listens
            connection.cancel_safe(timeout=1.0)
        with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as connected:
            connected.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cut_when_late(self, stop: Event, patience: float) -> Iterator[None]:
        """Cuts the connection when the block has not ended `patience` seconds after `stop` was set."""
        done = Event()

        def watch() -> None:
            while not done.wait(_TURN) and not stop.is_set():
                pass
            done.wait(patience)
            while not done.wait(_TURN):  # again and again: a connection may just be in the making
                self.cut()

        watching = Thread(target=watch, name="cut-when-late", daemon=True)
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join(_TURN)
