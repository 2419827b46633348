"""What holds a reader back, found from outside by a reader of one's own, with the same proof."""

from dataclasses import dataclass
from threading import Event
from time import monotonic

from infrastructure.event_reader import EventReader, HolderReport

PATIENCE = 1.0
"""Seconds. A position that is held for less is everyday traffic: somebody was about to commit."""

LONGEST_WALK = 10.0
"""Seconds. A reader that still finds events to deliver after so long is behind, but not held back."""

_PAGE = 1_000
_INTERVAL = 0.05


@dataclass(frozen=True)
class Hold:
    """Events are stored behind `position` and cannot be delivered. by: who may still add one before them.

    All of `by` have been open since the look began. Once they have ended, the events can be delivered.
    """

    position: int
    by: tuple[HolderReport, ...]


def find_hold(reader: EventReader, after: int, stop: Event, patience: float = PATIENCE) -> Hold | None:
    """What holds back a reader that stands at `after`; None when all that is stored by now can be delivered.

    reader: made for this look, so that it remembers nobody from before. stop: ends the look early, with None.
    """
    head, ends = reader.highest_position(), monotonic() + LONGEST_WALK
    until = monotonic() + patience
    while after < head and monotonic() < ends and not stop.is_set():
        page = reader.read(after, _PAGE)
        if page.events:
            after, until = page.events[-1].position, monotonic() + patience
        if page.settled:
            if len(page.events) < _PAGE:
                return None
            continue
        if monotonic() >= until:
            pids = {holder.pid for holder in page.held_by}
            by = tuple(each for each in reader.why() if each.pid in pids)
            if by:  # else the last of them has just ended
                return Hold(after, by)
        stop.wait(_INTERVAL)
    return None
