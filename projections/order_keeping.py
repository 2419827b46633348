"""Which events of a batch may be applied, and which must be parked, so that none overtakes an earlier one of its key.

The key is the Kafka record's, whatever its bytes are; a record without one holds nobody back. All topics
of a consumer share the keys: what waits for a decision about an order waits with all that is told of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from psycopg import Connection

from domain.contracts import Contract
from infrastructure.record import Record
from projections.decoding import Category, Faulty
from projections.key_locks import lock_keys
from projections.quarantine import Parked, content_hash, key_hash


class Readable(NamedTuple):
    """A record whose contract can be applied."""

    record: Record
    contract: Contract

    def parked(self, category: Category, reason: str) -> Parked:
        return Parked(self.record, Faulty(category, reason, self.contract.event_id))


Batch = Sequence[Readable | Parked]

BEHIND = "an earlier event of its key is in quarantine"

OF_CONTRACTS = frozenset({Category.REFUSED, Category.HANDLER, Category.TOO_OLD, Category.FOLLOWER})
"""Categories of records that hold a contract as it must be, so that its event id may be trusted."""


@dataclass(frozen=True)
class Limits:
    """The most entries that one consumer's quarantine takes: of one key, and in all. What comes then waits in Kafka.

    Consumers that park at the same moment may exceed the second by a batch each.
    """

    per_key: int = 10_000
    total: int = 100_000


@dataclass(frozen=True)
class Sorted:
    """waiting: records that must wait in Kafka, because the quarantine has no room for them, and what comes after
    them in their partitions. What is in none of the lists was in quarantine before."""

    apply: list[Readable] = field(default_factory=list)
    park: list[Parked] = field(default_factory=list)
    waiting: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """What the database knows of a batch. parked: entries by key. known: records that are or were in quarantine.

    settled: ids of events that were applied or discarded, or are parked. total: entries of the consumer.
    """

    parked: Mapping[bytes, int]
    known: frozenset[tuple[str, int, int, bytes]]
    settled: frozenset[str]
    total: int


IS_ANYTHING = "SELECT EXISTS (SELECT FROM quarantined_events WHERE consumer_name = %s AND state <> 'released')"
# Also keys with discarded entries: a discarded record that comes again must not be applied. The keys travel in
# binary (%b): as text, 500 of them cost more than the query.
KEYS_TO_LOOK_AT = """
    SELECT DISTINCT key_hash FROM quarantined_events
    WHERE consumer_name = %s AND key_hash = ANY (%b) AND state <> 'released'
"""
PARKED = """
    SELECT key_hash, count(*) FROM quarantined_events
    WHERE consumer_name = %s AND key_hash = ANY (%b) AND state <> 'released' AND state = 'parked'
    GROUP BY key_hash
"""
KNOWN = """
    SELECT topic, partition, "offset", content_hash
    FROM unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS come (topic, partition, "offset")
    JOIN quarantined_events USING (topic, partition, "offset")
    WHERE consumer_name = %(consumer_name)s
"""
# Also what is parked from another offset: an event may be in the topic twice.
SETTLED = """
    SELECT event_id FROM processed_events
    WHERE consumer_name = %(consumer_name)s AND event_id = ANY (%(event_ids)s)
    UNION ALL
    SELECT event_id FROM quarantined_events
    WHERE consumer_name = %(consumer_name)s AND key_hash = ANY (%(keys)b) AND state <> 'released' AND state = 'parked'
    AND event_id = ANY (%(event_ids)s) AND category = ANY (%(of_contracts)s)
"""
TOTAL = "SELECT count(*) FROM quarantined_events WHERE consumer_name = %s AND state = 'parked'"


def sort_out(batch: Batch, consumer_name: str, tx: Connection, limits: Limits) -> Sorted:
    """Costs a small query where nothing is in quarantine, and one for the keys where nothing of them is; it takes no
    lock then (see key_locks.py)."""
    to_look_at = _keys_to_look_at(tx, consumer_name, batch)
    if not to_look_at and all(isinstance(each, Readable) for each in batch):
        return Sorted(apply=[each for each in batch if isinstance(each, Readable)])
    to_look_at |= _keys(each for each in batch if isinstance(each, Parked))
    lock_keys(tx, consumer_name, to_look_at)
    concerned = [each for each in batch if isinstance(each, Parked) or _key(each.record) in to_look_at]
    # Asked only now, under the locks: what is parked of these keys stays so until we are done.
    return decide(batch, _look(tx, consumer_name, to_look_at, concerned), limits)


def decide(batch: Batch, found: Found, limits: Limits) -> Sorted:
    """Pure: the batch in its order, and what is known of it."""
    sorted_out, settled, total = Sorted(), set[str | None](found.settled), found.total
    parked: Counter[bytes | None] = Counter(found.parked)
    held: set[tuple[str, int]] = set()
    for each in batch:
        record, key, event_id = each.record, _key(each.record), _event_of_a_contract(each)
        if (record.topic, record.partition) in held:
            sorted_out.waiting.append(record)
        elif _is_known(record, found):
            continue
        elif isinstance(each, Readable) and not parked[key]:
            sorted_out.apply.append(each)
        elif event_id is not None and event_id in settled:
            continue
        elif total >= limits.total or parked[key] >= limits.per_key:
            held.add((record.topic, record.partition))
            sorted_out.waiting.append(record)
        else:
            sorted_out.park.append(each if isinstance(each, Parked) else each.parked(Category.FOLLOWER, BEHIND))
            settled.add(event_id)
            total += 1
            if key is not None:
                parked[key] += 1
    return sorted_out


def _keys_to_look_at(tx: Connection, consumer_name: str, batch: Batch) -> set[bytes]:
    if tx.execute(IS_ANYTHING, (consumer_name,)).fetchone() == (False,):
        return set()
    keys = _keys(batch)
    return {key for (key,) in tx.execute(KEYS_TO_LOOK_AT, (consumer_name, list(keys)))} if keys else set()


def _look(tx: Connection, consumer_name: str, keys: set[bytes], concerned: Batch) -> Found:
    records = [each.record for each in concerned]
    places = {
        "consumer_name": consumer_name,
        "topics": [record.topic for record in records],
        "partitions": [record.partition for record in records],
        "offsets": [record.offset for record in records],
    }
    ids = {
        "consumer_name": consumer_name,
        "event_ids": [event_id for event_id in map(_event_of_a_contract, concerned) if event_id is not None],
        "keys": list(keys),
        "of_contracts": [category.value for category in OF_CONTRACTS],
    }
    (total,) = tx.execute(TOTAL, (consumer_name,)).fetchone() or (0,)
    return Found(
        parked=dict(tx.execute(PARKED, (consumer_name, list(keys)))),
        known=frozenset(tx.execute(KNOWN, places)),
        settled=frozenset(event_id for (event_id,) in tx.execute(SETTLED, ids)),
        total=total,
    )


def _keys(batch: Iterable[Readable | Parked]) -> set[bytes]:
    return {key_hash(key) for key in {each.record.key for each in batch} if key is not None}


def _key(record: Record) -> bytes | None:
    return None if record.key is None else key_hash(record.key)


def _is_known(record: Record, found: Found) -> bool:
    return (record.topic, record.partition, record.offset, content_hash(record)) in found.known


def _event_of_a_contract(each: Readable | Parked) -> str | None:
    if isinstance(each, Readable):
        return each.contract.event_id
    return each.fault.event_id if each.fault.category in OF_CONTRACTS else None
