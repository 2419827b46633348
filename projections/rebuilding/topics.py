"""The projection's topics as a rebuild's source, for where the store cannot be reached."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

from psycopg import Connection, sql

from infrastructure.record import Record
from projections.decoding import Decoded, Decoder, Faulty
from projections.quarantine import content_hash
from projections.rebuilding.errors import RebuildRefused, RebuildStopped
from projections.rebuilding.source import (
    MOST_AT_ONCE,
    PAGE,
    PAGE_BYTES,
    Page,
    Partition,
    Place,
    Placed,
    Rest,
    Told,
    TooFarApart,
)
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import TopicReader, TopicsUnreadable

REST_SECONDS = 5.0
"""For all that Kafka is asked within the swap, and all that is read: live writers wait meanwhile."""

DISCARDED = """
    SELECT topic, partition, "offset", content_hash FROM {live}.quarantined_events
    WHERE consumer_name = %s AND state = 'discarded'
"""

Discarded = frozenset[tuple[str, int, int, bytes]]


def discarded_records(connection: Connection, live: str, consumer_name: str) -> Discarded:
    """Those that somebody has decided are never to be applied."""
    statement = sql.SQL(DISCARDED).format(live=sql.Identifier(live))
    return frozenset(connection.execute(statement, (consumer_name,)).fetchall())


class TopicSource:
    """What the topics hold, decoded as the live runner does. A row of the positions is a partition.

    A record that cannot be read stops the rebuild, unless somebody has discarded it: nobody knows what it tells, nor
    whose later events depend on it.
    """

    name = "the topics"
    repeats = True
    left_out: Sequence[int] = ()

    def __init__(self, target: Target, reader: TopicReader, discarded: Discarded) -> None:
        self._name, self._reader, self._discarded = target.name, reader, discarded
        self._decoder = Decoder(target.projection.contracts)
        firsts = [first for first, _ in reader.offsets()]
        self.partitions: Sequence[Partition] = [
            Partition(*place, first) for place, first in zip(reader.partitions, firsts, strict=True)
        ]
        self._end = sum(firsts)

    def expect(self, begun_with: Sequence[Partition]) -> None:
        """Goes on with what a rebuild was begun with. Raises RebuildRefused when the topics have been changed."""
        if [each[:2] for each in begun_with] != self._reader.partitions:
            raise _other_partitions(self._name)
        self.partitions = begun_with

    def gone(self) -> list[str]:
        firsts = [each for each in self.partitions if each.first]
        told = ", ".join(f"{each} begins at offset {each.first}" for each in firsts)
        number = sum(each.first for each in firsts)
        lost = [f"the first {number} records of its topics are gone ({told})"] if firsts else []
        return lost + self._reader.compacted()

    def page(self, positions: Mapping[int, int], _place: Place) -> Page:
        read = self._reader.read(list(positions.values()), PAGE, PAGE_BYTES)
        told, stopped = self._told(read.records)
        reached = dict(enumerate(read.reached))
        if stopped:
            reached = dict(positions) | {row: record.offset + 1 for row, record in read.records[: stopped[0]]}
        return Page(told, reached, read.ended, read.ended, stopped[1] if stopped else None)

    def rest(self, positions: Sequence[int]) -> Rest:
        """Live writers must be held back by now: then what is committed in Kafka is all that they can have applied.

        Takes REST_SECONDS and little more. Raises as the interface says, also when the time is over; RebuildRefused
        when the topics have other partitions; TopicsUnreadable.
        """
        until = monotonic() + REST_SECONDS
        if self._reader.has_changed(until):
            raise _other_partitions(self._name)
        at, records, ended = list(positions), list[tuple[int, Record]](), False
        self._reader.begin_round(at, until)
        while not ended:
            read = self._reader.read(at, MOST_AT_ONCE + 1, PAGE_BYTES)
            records += read.records
            at, ended = list(read.reached), read.ended
            if len(records) > MOST_AT_ONCE or (not ended and monotonic() > until):
                raise TooFarApart
        told, stopped = self._told(records)
        if stopped:
            raise stopped[1]
        return Rest((), [each for one in told for each in one.contracts], list(positions))

    def stopped(self, row: int, position: int, event_id: str | None, problem: str) -> RebuildStopped:
        return RebuildStopped(self._name, position, event_id, problem, str(self.partitions[row]))

    def extent(self, positions: Sequence[int]) -> tuple[int, int]:
        """Offsets, over all partitions; of the end as it was known last where Kafka does not answer."""
        with suppress(TopicsUnreadable):
            self._end = sum(end for _, end in self._reader.offsets())
        first = sum(each.first for each in self.partitions)
        return sum(positions) - first, max(self._end, sum(positions)) - first

    def _told(self, records: Sequence[tuple[int, Record]]) -> tuple[list[Told], tuple[int, RebuildStopped] | None]:
        """All of them, or those before the first that cannot be read, its index and why."""
        told = []
        for index, (row, record) in enumerate(records):
            match self._decoder.decode(record):
                case Decoded(contract):
                    told.append(Told(row, record.offset + 1, [Placed(record.offset, contract)]))
                case Faulty() as fault if self._key_of(record) not in self._discarded:
                    problem = f"it cannot be read ({fault.reason})"
                    return told, (index, self.stopped(row, record.offset, fault.event_id, problem))
        return told, None

    def _key_of(self, record: Record) -> tuple[str, int, int, bytes]:
        return record.topic, record.partition, record.offset, content_hash(record)


def _other_partitions(name: str) -> RebuildRefused:
    reason = "its topics have other partitions than when the rebuild began: `rebuild abandon` it, and begin anew"
    return RebuildRefused(name, reason)
