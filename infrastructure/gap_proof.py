"""Why a reader may pass a missing position, in words, and the little it must remember for that.

An event draws its position inside its INSERT or COPY, and becomes visible when that transaction commits.
So a higher position can be visible while a lower one is still to come, and a position whose transaction
was rolled back never comes at all. A reader that sees a gap must tell the one from the other.

1. An INSERT or COPY, from whatever program, locks `stored_events` ROW EXCLUSIVE before it draws its first
   position, and keeps the lock until its transaction has ended. (A writer that locks the table harder
   takes this lock as well. Rolling back to a savepoint may release it early, but then what was inserted
   since is gone for good.)
2. Positions are drawn from one sequence without a cache: whoever drew a lower one drew it earlier.
3. A commit becomes visible to new snapshots before its transaction's locks are released.

Say a row at position `seen` has been read, and some position below it was missing. Whoever drew the
missing one did so before (2) and held the lock then (1). Look at the holders of the lock now, after the
read. If there is none, that transaction has ended, and so a new snapshot shows its row or its row will
never exist (3): after a new read up to `seen`, all that is still missing there is missing for ever. If there
are holders, only they can still bring a row below `seen`; transactions that take the lock later draw
higher positions. So the reader remembers `seen` and those holders, and when the last of them has ended,
the same conclusion holds for `seen`, however many others write meanwhile.

What is remembered does not grow with the number of missing positions. No clock takes part.

Outside the proof: a writer who passes by the sequence (OVERRIDING SYSTEM VALUE, or COPY with the column
`position`), as a restored dump does; and a server with synchronous_commit off, which shows commits that
it may lose in a crash.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """A transaction that may still add events. pid: of its session, None when it is prepared (two-phase)."""

    pid: int | None
    transaction: str

    @property
    def prepared(self) -> bool:
        return self.pid is None


class GapProof:
    """Up to where missing positions are known to be missing for ever, for one reader of one server."""

    def __init__(self) -> None:
        self._settled = 0
        self._seen = 0
        self._awaited: frozenset[Holder] = frozenset()

    @property
    def settled(self) -> int:
        """What a snapshot newer than the last `look` shows up to this position is all there will ever be."""
        return self._settled

    @property
    def awaited(self) -> frozenset[Holder]:
        """Those remembered from an earlier look that had not ended by the last one."""
        return self._awaited

    def look(self, after: int, seen: int, holders: frozenset[Holder]) -> bool:
        """Draws the conclusion from a look at the lock. True when `settled` has grown.

        after: the reader has delivered everything up to here, so that nothing below matters any more.
        seen: the highest position read, with a gap below it, before the look.
        holders: who held the lock at the time of the look.
        """
        before = self._settled
        if self._seen > after:
            self._awaited = _still_open(self._awaited, holders)
            if not self._awaited:
                self._settled = max(self._settled, self._seen)
        if self._seen <= after or not self._awaited:
            self._seen, self._awaited = seen, holders
        if not holders:
            self._settled = max(self._settled, seen)
        return self._settled > before


def _still_open(awaited: frozenset[Holder], holders: frozenset[Holder]) -> frozenset[Holder]:
    """Who of the awaited has not ended.

    PREPARE TRANSACTION gives a transaction another name. When an awaited one is gone, it may be any of those
    that are prepared by now, and these are awaited in its place.
    """
    gone = awaited - holders
    renamed = {holder for holder in holders if holder.prepared} if any(not holder.prepared for holder in gone) else ()
    return (awaited & holders).union(renamed)
