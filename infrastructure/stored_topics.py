"""Which topics and versions a store holds, and how many events of each.

There is no index on topics: it would make every append dearer for a question that is asked once a release.
So the whole table is read, by position, in statements of some 100,000 events. Each is short: no snapshot
stays open that would keep VACUUM from its work, no timeout has to be lifted, and progress can be shown.
"""

from collections.abc import Callable
from dataclasses import dataclass

from infrastructure.event_reader import HIGHEST_POSITION
from infrastructure.postgres import Connection

COUNT_TOPICS = """
    SELECT topic, version, count(*), min(position), max(position)
    FROM (
        SELECT position, topic,
            CASE WHEN substring(state FROM 1 FOR 17) <> '{"class_version":' THEN '1'
                ELSE coalesce(substring(encode(substring(state FROM 18 FOR 20), 'escape') FROM '^[0-9]{1,18}'), '0')
            END::bigint AS version
        FROM stored_events WHERE position > %s ORDER BY position LIMIT %s
    ) AS portion
    GROUP BY topic, version
"""


@dataclass(frozen=True)
class StoredTopic:
    """count: events of this topic in this version. first_position: of the lowest of them, as an example."""

    topic: str
    version: int
    count: int
    first_position: int


def count_topics(
    connection: Connection, say_progress: Callable[[int, int], None], portion: int = 100_000
) -> list[StoredTopic]:
    """By topic and version. connection: in autocommit mode; it is made read-only.

    say_progress: called with the position that was reached and the last one to reach. The version is the one
    that the mapper writes at the beginning of a state; 0 when that is not a number. What others store
    meanwhile may be missing.
    """
    connection.execute("SET default_transaction_read_only = on")
    (highest,) = connection.execute(HIGHEST_POSITION).fetchone() or (0,)
    found: dict[tuple[str, int], StoredTopic] = {}
    reached = 0
    while reached < highest:
        rows = connection.execute(COUNT_TOPICS, (reached, portion)).fetchall()
        for topic, version, count, first, _ in rows:
            before = found.get((topic, version), StoredTopic(topic, version, 0, first))
            found[topic, version] = StoredTopic(topic, version, before.count + count, before.first_position)
        reached = max(last for *_, last in rows)
        say_progress(reached, highest)
    return [found[key] for key in sorted(found)]
