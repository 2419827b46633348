"""As far as a Settler needs a Subscriber: it is told which records are done with."""

from collections.abc import Iterable
from threading import Event

from infrastructure.record import Record


class Finished:
    def __init__(self) -> None:
        self.offsets: set[int] = set()

    def finish(self, records: Iterable[Record]) -> None:
        self.offsets.update(record.offset for record in records)

    def keep_alive(self) -> None:
        pass

    def idle(self, stop: Event, seconds: float) -> None:
        pass
