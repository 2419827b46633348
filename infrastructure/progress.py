"""How far one partition has been worked off. The offset to commit never passes an unfinished record."""

from infrastructure.record import Record


class Progress:
    """Records come in order of offset and are finished in any order."""

    def __init__(self) -> None:
        self._unfinished: dict[int, Record] = {}
        self._next: int | None = None
        self._committed: int | None = None

    def add(self, record: Record) -> None:
        self._unfinished[record.offset] = record
        self._next = record.offset + 1

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
