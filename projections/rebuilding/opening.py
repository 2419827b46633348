"""Opens what a rebuild reads from: the event store, or the projection's topics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import Connection

from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.source import Partition, Source
from projections.rebuilding.stored import StoreSource, skipped_positions
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import reading
from projections.rebuilding.topics import TopicSource, discarded_records


@contextmanager
def opened(
    target: Target, connection: Connection, live: str, partitions: Sequence[Partition], from_topics: bool = False
) -> Iterator[Source]:
    """The topics if the rebuild was begun with their partitions, or is to begin with them; else the store.

    connection: to the projection's database. Raises RebuildRefused, TopicsUnreadable, psycopg.Error.
    """
    if not partitions and not from_topics:
        left_out = skipped_positions(connection, live, target.name) if target.is_fed_by_the_store else ()
        with target.connect_store() as store:
            yield StoreSource(target, store, left_out)
        return
    if target.kafka is None or target.is_fed_by_the_store:
        raise RebuildRefused(target.name, "it is not fed by topics: rebuild it from the store")
    with reading(target.kafka, f"{target.name}.rebuild", target.projection.topics) as reader:
        source = TopicSource(target, reader, discarded_records(connection, live, target.name))
        if partitions:
            source.expect(partitions)
        yield source
