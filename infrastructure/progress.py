"""How far one partition has been worked off, and in which order its records came. The offset to commit never passes an
unfinished record, and no record is taken before one that precedes it."""

from enum import Enum, auto

from infrastructure.record import Record

MOST_CHECKS = 5
"""Of one gap, when each reading ends at another record."""


class Came(Enum):
    """How a record came, next to what came before it."""

    IN_ORDER = auto()
    AFTER_GAP = auto()
    """Taken, and the gap was not read once more. It is no wider than one that was, and was proved."""
    AFTER_PROVED_GAP = auto()
    """Taken, after it came again when the gap was read once more. Nothing is at the offsets in between: a
    transaction's mark, what compaction has removed, or what was deleted."""
    FOUND = auto()
    """Taken: it lies in a gap that was read once more, so the client had left it out."""
    AGAIN = auto()
    """Taken: the client has gone back. All that follows it comes again too."""
    TOO_EARLY = auto()
    """Not taken, nor is anything else until the partition is read again from `next`. Also one from before the start."""
    UNPROVED = auto()
    """Not taken: the gap ended at another record each time it was read. A new client has to begin at `next`."""


NOT_TAKEN = (Came.TOO_EARLY, Came.UNPROVED)


class Progress:
    """Of one assignment of a partition: from when it became ours until it is taken away.

    Records are taken in order of offset, beginning with the first one at or after `start`, and are finished in
    any order. Where the client goes back, it brings the same sequence again from there.

    A gap may be real: there is one after every transaction, and wherever a topic is compacted or was cut off. Or the
    client has skipped records, or still brings one of the time before it began to read anew. What tells
    the two apart is reading the gap once more: a real one ends at the same record again. Believed without that are
    only those no wider than one that was proved since the client may last have begun anew (see `doubt` and
    `trust_gaps`), else every transaction would be read twice.

    A record from before the start, when nothing was taken yet, is believed only when it comes once more too: then the
    topic was made anew, or has lost its end.
    """

    def __init__(self, start: int | None = None) -> None:
        """start: where the group's work had come to. None when that is not known; then the first record is believed."""
        self._unfinished: dict[int, Record] = {}
        self._next = self._committed = start
        self._is_calm = False
        """Whether the next offset in order needs no closer look."""
        self._has_begun = self._has_gone_back = False
        self._widest_gap = 0
        """That is believed unread."""
        self._suspect: int | None = None
        self._checks, self._must_be_read_again = 0, False

    @property
    def next(self) -> int | None:
        """The offset that follows the last record, if that is known; there may be none at it."""
        return self._next

    def starts_at(self, offset: int | None) -> None:
        """For when that was not known at first, and nothing has come yet."""
        self._next = self._committed = offset

    def doubt(self) -> None:
        """The client may begin to read anew: it was paused, resumed, or given other partitions."""
        self._widest_gap = 0

    def trust_gaps(self, width: int) -> None:
        """Up to so many offsets, until `doubt`. To be called for a gap that was proved, unless records were deleted
        there: how many those were says nothing of the gaps that are usual in this partition."""
        self._widest_gap = max(self._widest_gap, width)

    def add(self, record: Record) -> Came:
        came = Came.IN_ORDER
        if record.offset != self._next or not self._is_calm:
            came = self._look_at(record.offset)
            if came in NOT_TAKEN:
                return came
        self._unfinished[record.offset] = record
        self._next = record.offset + 1
        return came

    def is_read_again(self) -> None:
        """The client has been sent back to `next`."""
        self._must_be_read_again = False

    def _look_at(self, offset: int) -> Came:
        came = self._how_it_came(offset)
        if came in NOT_TAKEN:
            self._is_calm, self._must_be_read_again = False, True
            return came
        self._has_gone_back = self._has_gone_back or came is Came.AGAIN
        self._suspect, self._checks = None, 0
        self._has_begun = self._is_calm = True
        return came

    def _how_it_came(self, offset: int) -> Came:
        if self._must_be_read_again:
            return Came.TOO_EARLY
        if self._next is None or offset == self._next:
            return Came.IN_ORDER if self._suspect is None else Came.FOUND
        if offset < self._next and (self._has_begun or offset == self._suspect):
            return Came.AGAIN
        if offset == self._suspect:
            return Came.AFTER_PROVED_GAP
        if self._suspect is None and 0 < offset - self._next <= self._widest_gap:
            return Came.AFTER_GAP
        if self._checks == MOST_CHECKS:
            return Came.UNPROVED
        self._suspect, self._checks = offset, self._checks + 1
        return Came.TOO_EARLY

    def finish(self, record: Record) -> None:
        """Only this very one: another may be at its offset, when the client has gone back."""
        if self._unfinished.get(record.offset) is record:
            del self._unfinished[record.offset]

    @property
    def unfinished(self) -> list[Record]:
        """In order of offset."""
        return [self._unfinished[offset] for offset in sorted(self._unfinished)]

    @property
    def due(self) -> int | None:
        """The offset to commit: of the first unfinished record, else after the last. None when nothing has changed."""
        if self._has_gone_back:  # else they stand in their order
            position = min(self._unfinished, default=self._next)
        else:
            position = next(iter(self._unfinished), self._next)
        return position if position != self._committed else None

    def committed(self, offset: int) -> None:
        self._committed = offset
