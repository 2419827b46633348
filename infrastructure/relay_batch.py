"""What a shard of a relay publishes next: a page of stored events, its own of which are messages now, or parked."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infrastructure.delivery import OutgoingMessage
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader, Page, RecordedEvent
from infrastructure.lease import Shard
from infrastructure.outgoing_quarantine import Parked
from infrastructure.parking import Parking
from infrastructure.shards import shard_of

_TOGETHER = 50
"""Events that are mapped together, which takes less time than one by one; `turn` is called in between."""
_LARGEST_PAGE = 10_000
"""Events. The more shards, the fewer of a page are a shard's own, and the larger its pages."""
_SMALL_PAGE = 20
"""Events, at least, when only the first few of them will be published."""


@dataclass(frozen=True)
class Batch:
    """events: those it covers, in order, other shards' among them. messages: what the shard's own became.

    parked: those of the shard's own that are not published; to be written down before the messages are sent.
    concerns_the_shard: whether any of the events is its own. full: whether more may be stored right behind it.
    """

    events: Sequence[RecordedEvent]
    messages: Sequence[OutgoingMessage]
    parked: Sequence[Parked] = ()
    concerns_the_shard: bool = True
    full: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.events

    def covered(self, acknowledged: int) -> RecordedEvent | None:
        """The last event of which all messages are among the first `acknowledged`; None before the first."""
        done = len(self.events)
        if acknowledged < len(self.messages):
            done = bisect_left(self.events, self.messages[acknowledged].position, key=lambda event: event.position)
        return self.events[done - 1] if done else None


class SetBack:
    """The store was set back behind the position that was asked for; see docs/operations.md."""


class Preparer:
    """Reads and sorts for one shard, in pieces that are bounded in number and in bytes."""

    def __init__(
        self,
        reader: EventReader,
        parking: Parking,
        shard: Shard,
        size: int,
        max_bytes: int,
        turn: Callable[[], None],
    ) -> None:
        """size: most events of the shard in a batch. max_bytes: after which it ends, as they are stored and as
        messages; one event may go beyond. turn: called while it works, to keep the lease."""
        self._reader, self._parking, self._shard, self._turn = reader, parking, shard, turn
        self._size, self._max_bytes = size, max_bytes
        self._page = max(size, min(size * shard.shards, _LARGEST_PAGE))

    def batch(self, after: int, anchor: bytes | None, most: int) -> Batch | SetBack:
        """What comes after a position. most: events that become messages, after which it ends.

        anchor: fingerprint of the event at that position, when it is known. That event is read in the same
        snapshot as the page and compared, so a store that was set back is found whether or not the
        checkpoint has moved there yet: what counts is which event was passed at `after`, and by whom.
        """
        limit = self._page if most >= self._size else min(self._page, max(_SMALL_PAGE, 2 * most))
        page = self._reader.read(after, limit, self._max_bytes)
        if self._was_set_back(page, after, anchor):
            return SetBack()
        cut = len(page.events) >= limit or sum(len(event.state) for event in page.events) >= self._max_bytes
        return self._sort(page, cut, most)

    def _is_own(self, event: RecordedEvent) -> bool:
        shards = self._shard.shards
        return shards == 1 or shard_of(event.originator_id, shards) == self._shard.number

    def _was_set_back(self, page: Page, after: int, anchor: bytes | None) -> bool:
        """Whether the store was restored from a backup, or lost its tail in a failover: it would use positions
        again that were passed already, and so the new events there would be skipped."""
        if anchor is None:
            return not page.events and page.settled and after > self._reader.highest_position()
        return page.anchor is None or fingerprint(page.anchor) != anchor

    def _sort(self, page: Page, cut: bool, most: int) -> Batch:
        messages: list[OutgoingMessage] = []
        parked: list[Parked] = []
        own = published = size = 0
        for start in range(0, len(page.events), _TOGETHER):
            self._turn()
            piece = page.events[start : start + _TOGETHER]
            mine = [index for index, event in enumerate(piece, start) if self._is_own(event)]
            for index, (made, aside) in zip(mine, self._parking.route_all([page.events[i] for i in mine]), strict=True):
                own += 1
                if made:
                    messages += made
                    published += 1
                    size += sum([len(message.value) for message in made])
                if aside:
                    parked.append(aside)
                if own == self._size or published == most or size >= self._max_bytes:
                    return Batch(page.events[: index + 1], messages, parked, full=cut or index + 1 < len(page.events))
        return Batch(page.events, messages, parked, own > 0, cut)
