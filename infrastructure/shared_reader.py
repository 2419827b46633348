"""One event reader for many threads, renewed with its connection."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import psycopg

from infrastructure.event_reader import EventReader, Page
from infrastructure.fork import in_each_forked_child
from infrastructure.postgres import Connection

T = TypeVar("T")


class SharedReader:
    """Reads for whoever asks, one at a time, so that what is known about gaps is kept between their calls.

    An error closes the connection and comes through; the next call makes a new one.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock: Lock
        self._opened: tuple[Connection, EventReader] | None = None
        self._of_the_parent: list[object] = []
        self._start_afresh()
        in_each_forked_child(self._start_afresh)

    def read(self, after: int, limit: int) -> Page:
        return self._with_reader(lambda reader: reader.read(after, limit))

    def highest_position(self) -> int:
        return self._with_reader(EventReader.highest_position)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _with_reader(self, work: Callable[[EventReader], T]) -> T:
        with self._lock:  # a reader's memory of a gap is for one thread at a time
            try:
                if self._opened is None:
                    connection = self._connect()
                    self._opened = connection, EventReader(connection)
                return work(self._opened[1])
            except psycopg.Error:
                self._drop()
                raise

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
        self._opened = None

    def _start_afresh(self) -> None:
        """The parent's connection is kept, for closing it here would end it for the parent."""
        self._lock = Lock()
        self._of_the_parent.append(self._opened)
        self._opened = None
