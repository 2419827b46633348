"""One partition as a rebuild reads it: in order of offset, nothing left out that Kafka's client may have left out."""

from collections import deque
from dataclasses import dataclass, field

from infrastructure.record import Record

MOST_CHECKS = 5
"""Of one gap, when each reading ends somewhere else."""


class NotToBeHad(Exception):
    """The gap ended at another place each time that it was read."""


@dataclass
class Lane:
    """next: offset after what was handed out. tail: after what was read. goal: where the round ends.

    A gap, before a record or before the partition's end, may be real: marks of transactions, or what compaction has
    removed. Or the client has skipped records, or still brings something of the time before it was sent elsewhere. So
    it is read once more from `tail`, and believed when it ends at the same place again. Later ones before a record that
    are no wider are believed at once, until the client may have begun to read anew; else each transaction would be
    read twice.
    """

    place: tuple[str, int]
    next: int = 0
    tail: int = 0
    goal: int = 0
    size: int = 0
    paused: bool = False
    waiting: deque[Record] = field(default_factory=deque)
    is_to_be_read_again: bool = False
    """The client has to go back to `tail`; until then nothing is taken."""
    _suspect: int | None = None
    """Where a gap ended that is being read once more."""
    _checks: int = 0
    _proved: int = 0
    """Offsets: a gap before a record is believed at once when it is no wider."""

    @property
    def is_done(self) -> bool:
        return self.next >= self.goal

    def is_full(self, records: int, size: int) -> bool:
        return len(self.waiting) >= records or self.size >= size

    def begin(self, offset: int) -> None:
        """The client was sent there."""
        self.next = self.tail = offset
        self.size, self.paused = 0, False
        self.waiting.clear()
        self._suspect, self._checks, self.is_to_be_read_again = None, 0, False
        self.doubt()

    def doubt(self) -> None:
        """The client may begin to read anew: it was paused or resumed."""
        self._proved = 0

    def is_read_again(self) -> None:
        """The client was sent back to `tail`."""
        self.is_to_be_read_again = False

    def add(self, record: Record) -> None:
        """Raises NotToBeHad."""
        if self.is_to_be_read_again or record.offset < self.tail or not self._is_believed(record.offset):
            return
        self._suspect, self._checks = None, 0
        self.waiting.append(record)
        self.tail = record.offset + 1
        self.size += size_of(record)

    def has_ended_at(self, offset: int) -> None:
        """The partition's end, says the client: no record from `tail` up to there. Raises NotToBeHad."""
        if self.is_to_be_read_again or offset <= self.tail:
            return
        if self._suspect is not None and self._suspect <= offset:  # twice nothing came before it
            self.tail, self._suspect, self._checks = self._suspect, None, 0
        if offset > self.tail:
            self._read_again(offset)
        if not self.waiting:
            self.next = self.tail

    def take(self) -> Record:
        record = self.waiting.popleft()
        self.size -= size_of(record)
        self.next = record.offset + 1 if self.waiting else self.tail
        return record

    def _is_believed(self, offset: int) -> bool:
        """Whether nothing lies between `tail` and this record; if that is not known, the gap is to be read again."""
        width = offset - self.tail
        if offset == self._suspect:
            self._proved = max(self._proved, width)
        elif width and (self._suspect is not None or width > self._proved):
            self._read_again(offset)
            return False
        return True

    def _read_again(self, end: int) -> None:
        if self._checks == MOST_CHECKS:
            raise NotToBeHad
        self._suspect, self._checks, self.is_to_be_read_again = end, self._checks + 1, True


def size_of(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")
