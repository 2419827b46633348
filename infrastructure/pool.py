"""Connections for threads that append and load: made when needed, kept for the next who asks.

psycopg_pool makes its connections in threads of its own. After an outage it comes back in steps of 1, 2,
4 ... seconds, tells the caller of a timeout and not of its cause, and either finds out about a dead
connection by a round trip before each use or not at all. Here the caller connects, at once and with the
error at hand, and a dead connection is found without a round trip.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

import psycopg
from psycopg.pq import TransactionStatus

from infrastructure.fork import in_each_forked_child
from infrastructure.postgres import Connection, StoreUnavailable

MAX_AGE_SECONDS = 1_800.0
"""A connection is replaced after this time, so that one day all have moved to where the name points now."""


class Pool:
    """At most `size` connections for the threads of one process; a forked child makes its own.

    connect: makes a connection in autocommit mode. patience: longest wait in seconds for a free one.
    """

    def __init__(self, connect: Callable[[], Connection], size: int, patience: float = 5.0) -> None:
        self._connect, self._size, self._patience = connect, size, patience
        self._closed = False
        self._idle: deque[Connection] = deque()
        self._free: BoundedSemaphore
        self._of_the_parent: list[deque[Connection]] = []
        self._start_afresh()
        in_each_forked_child(self._start_afresh)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to use and give back; a broken one, or one left in a transaction, is not kept.

        Raises StoreUnavailable when none gets free in time, and what `connect` raises.
        """
        free, idle = self._free, self._idle
        if not free.acquire(timeout=self._patience):
            raise StoreUnavailable("all connections in use")
        try:
            connection = self._usable(idle) or self._connect()
            try:
                yield connection
            finally:
                if self._closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
                    connection.close()
                else:
                    idle.append(connection)
        finally:
            free.release()

    def close(self) -> None:
        """Closes the idle ones now, those in use when they are given back. A later use connects anew."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _usable(self, idle: deque[Connection]) -> Connection | None:
        """The one used last, so that what is not needed ages and goes."""
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return None
            if time.monotonic() - connection.made_at < MAX_AGE_SECONDS and _is_open(connection):
                return connection
            connection.close()

    def _start_afresh(self) -> None:
        """The parent's connections are kept from being closed here, which would end them for the parent."""
        self._of_the_parent.append(self._idle)
        self._idle = deque()
        self._free = BoundedSemaphore(self._size)


def _is_open(connection: Connection) -> bool:
    """Without a round trip: a server that closed the connection has left the end of the stream to be read."""
    try:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        while poll.poll(0):
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return True
