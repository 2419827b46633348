"""How far one partition has been worked off. The offset to commit never passes an unfinished record."""

from infrastructure.record import Record


class Progress:
    """Records come in order of offset and are finished in any order."""

    def __init__(self, committed: int | None = None) -> None:
        """committed: where the group's work had come to; None when that is not known."""
        self._unfinished: dict[int, Record] = {}
        self._next = self._committed = committed
        self.has_begun = False

    @property
    def next(self) -> int | None:
        """The offset that follows the last record, if that is known; there may be none at it."""
        return self._next

    def add(self, record: Record) -> None:
        self._unfinished[record.offset] = record
        self._next = record.offset + 1
        self.has_begun = True

    def finish(self, offset: int) -> None:
        self._unfinished.pop(offset, None)

    @property
    def unfinished(self) -> list[Record]:
        """In the order in which they came."""
        return list(self._unfinished.values())

    @property
    def due(self) -> int | None:
        """The offset to commit: of the first unfinished record, else after the last. None when nothing has changed."""
        position = next(iter(self._unfinished), self._next)
        return position if position != self._committed else None

    def committed(self, offset: int) -> None:
        self._committed = offset
