"""Where a rebuild has its contracts from: one interface, and what travels through it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from domain.contracts import Contract
from infrastructure.event_reader import RecordedEvent
from infrastructure.shards import shard_of
from projections.rebuilding.errors import RebuildStopped

PAGE = 5_000
PAGE_BYTES = 16 * 2**20
"""What a worker holds in memory is bounded by twice these two, however long the history is."""

CLOSE = 200
"""Events: when a page had no more than these, the other tables have caught up with the store."""

MOST_AT_ONCE = 1_000
"""Events that may still be applied while live writers wait. When there are more, they get their turn before."""


class TooFarApart(Exception):
    """There are more than MOST_AT_ONCE events between the two, or to read them takes too long for those who wait: catch
    up once more, then try again."""


class Partition(NamedTuple):
    """Of a topic. first: offset of its oldest record when the rebuild began."""

    topic: str
    number: int
    first: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True)
class Place:
    """One worker among `workers`, in the process that has the rebuild's `run`. live: schema of the live tables.

    partitions: those that it reads, where the contracts come from topics; then there is one worker, with a row for
    each of them.
    """

    live: str
    run: int
    worker: int = 0
    workers: int = 1
    partitions: Sequence[Partition] = ()

    @property
    def rows(self) -> list[int]:
        """Numbers of the rows that hold its positions."""
        return list(range(len(self.partitions))) or [self.worker]

    def is_mine(self, event: RecordedEvent) -> bool:
        return self.workers == 1 or shard_of(event.originator_id, self.workers) == self.worker


class Placed(NamedTuple):
    """A contract. position: of the event that it tells of, or the offset of its record."""

    position: int
    contract: Contract

    @property
    def event_id(self) -> str:
        return self.contract.event_id


class Told(NamedTuple):
    """What one stored event or one record tells the projection. reached: where its row is once that is applied."""

    row: int
    reached: int
    contracts: Sequence[Placed]


class Page(NamedTuple):
    """told: in order. reached: positions by row once all of them are applied. ended: there was nothing more to read.
    close: what is left may be done within a swap. stopped: why what comes next cannot be read."""

    told: Sequence[Told]
    reached: Mapping[int, int]
    ended: bool
    close: bool
    stopped: RebuildStopped | None = None


class Rest(NamedTuple):
    """What there is beyond the positions of the other tables.

    due: what some of them have passed already, so that all must have it. beyond: the others. reached: the positions
    that they come to with what is due.
    """

    due: Sequence[Placed]
    beyond: Sequence[Placed]
    reached: Sequence[int]


class Source(Protocol):
    """The contracts of a projection, each with its position; of one aggregate and topic in their order.

    Changes nothing where they come from.
    """

    name: str
    """In words, such as `the store`."""

    repeats: bool
    """Whether an event may come more than once."""

    left_out: Sequence[int]
    """Positions of the store that the projection does without, because somebody has said so; ascending."""

    partitions: Sequence[Partition]
    """What the rows of the positions stand for; none when it is positions of the store."""

    def gone(self) -> list[str]:
        """In words: what it has not any more, or may not have."""

    def page(self, positions: Mapping[int, int], place: Place) -> Page:
        """What comes next, in bounded memory; it may be empty before the end. positions: of the rows of `place`."""

    def rest(self, positions: Sequence[int]) -> Rest:
        """All that there is beyond these positions, one for each row. Raises TooFarApart, RebuildStopped."""

    def stopped(self, row: int, position: int, event_id: str | None, problem: str) -> RebuildStopped:
        """Names the event by where it stands. position: as in Placed."""

    def extent(self, positions: Sequence[int]) -> tuple[int, int]:
        """How much is done, and of how much."""
