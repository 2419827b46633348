"""Changes the number of a relay's shards.

Where messages go to Kafka in transactions, Kafka is asked first. The new shards have other names than the old ones,
or do other work under them: a new one that starts would not end what an old one that is asleep has left open.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic

from domain.errors import CounterfoilError
from infrastructure.lease import Shard
from infrastructure.postgres import Connection
from infrastructure.publisher import Mark, Publisher, PublishFailed
from infrastructure.relay_changes import END_LAPSED_LEASES, ShardRow, changing, locked, once_free, stand_aside

MOST_SHARDS = 256


@dataclass(eq=False)
class OldShardUnsettled(CounterfoilError):
    """Kafka did not say what became of the last messages of a shard. Nothing was changed; the relay goes on as it was.

    error: Kafka's or the client's name of the reason. What to do: try again when Kafka is well.
    """

    relay: str
    shard: int
    error: str

    def __str__(self) -> str:
        return (
            f"Kafka does not say what shard {self.shard} of the relay {self.relay!r} has published ({self.error}). "
            "Nothing was changed; try again when Kafka is well."
        )


@dataclass(eq=False)
class KafkaNotAsked(CounterfoilError):
    """The relay has delivered effectively once, and the settings given do not say so. Nothing was changed.

    What to do: give the command the relay's settings.
    """

    relay: str

    def __str__(self) -> str:
        return (
            f"The relay {self.relay!r} last ran effectively once. Nothing was changed. Give this command its settings, "
            "COUNTERFOIL_RELAY_DELIVERY=effectively-once and the address of Kafka, which has to be asked."
        )


@dataclass(frozen=True)
class Resharded:
    """position: where all shards begin. repeats_up_to: events between the two may be published a second time."""

    before: int
    after: int
    position: int
    repeats_up_to: int


REMOVE_SHARDS = "DELETE FROM relay_checkpoints WHERE relay = %s"

ADD_SHARDS = """
    INSERT INTO relay_checkpoints
        (relay, shard, shards, position, anchor, epoch, generation, beat_at, paused_since, paused_until)
    SELECT %(relay)s, shard, %(shards)s, %(position)s, %(anchor)s, %(epoch)s, %(generation)s, clock_timestamp(),
           CASE WHEN %(paused)s THEN clock_timestamp() END, CASE WHEN %(paused)s THEN 'infinity'::timestamptz END
    FROM generate_series(0, %(shards)s - 1) AS shard
"""


def reshard(
    connection: Connection,
    relay: str,
    shards: int,
    patience: float,
    stop: Event,
    publisher_for: Callable[[Shard], Publisher] | None = None,
) -> Resharded:
    """Changes the number of shards. All begin at the lowest position of the old ones.

    publisher_for: of each old shard, as its relay had it. It is resumed once: in Kafka nobody can commit any more
    what an old shard has left open, and what Kafka knows to be committed counts. None where Kafka keeps nothing of
    the kind, as at least once.

    Guarantees: no event is left out; first appearances of each key stay in order. What was published above the
    lowest position comes a second time, with the same ids. One transaction: all of it or nothing.
    Raises UnknownRelay, ChangeUnderWay, StillPublishing, KafkaNotAsked and OldShardUnsettled, and then nothing was
    changed.
    """
    until = monotonic() + patience

    def end_leases(_free: Sequence[ShardRow]) -> list[ShardRow]:
        connection.execute(END_LAPSED_LEASES, (relay,))
        return locked(connection, relay)

    with changing(connection, relay):
        while True:
            # First the leases, then Kafka: whoever wakes up between the two has nothing left to publish under.
            old = once_free(connection, relay, end_leases, until, patience, stop)
            if len(old) == shards:
                return _told(old, [row.mark for row in old], shards)
            marks = _settle(connection, relay, old, publisher_for)
            change = _put_in_place(connection, old, marks, relay, shards)
            if once_free(connection, relay, change, until, patience, stop):
                return _told(old, marks, shards)


def _settle(
    connection: Connection, relay: str, old: Sequence[ShardRow], publisher_for: Callable[[Shard], Publisher] | None
) -> list[Mark]:
    """What each has published for certain. The relay stands aside meanwhile, and no transaction is open."""
    if publisher_for is None:
        if any(row.delivery == "effectively-once" for row in old):
            raise KafkaNotAsked(relay)
        return [row.mark for row in old]
    marks = []
    for row in old:
        publisher = publisher_for(Shard(relay, row.shard, len(old)))
        try:
            marks.append(publisher.resume(row.mark, lambda: stand_aside(connection, relay)))
        except PublishFailed as failed:
            raise OldShardUnsettled(relay, row.shard, failed.error) from None
        finally:
            publisher.close()
    return marks


def _put_in_place(
    connection: Connection, old: Sequence[ShardRow], marks: Sequence[Mark], relay: str, shards: int
) -> Callable[[Sequence[ShardRow]], bool]:
    lowest = min(marks, key=lambda mark: mark.position)
    values = {
        "relay": relay,
        "shards": shards,
        "position": lowest.position,
        "anchor": lowest.anchor,
        "epoch": max(row.epoch for row in old) + 1,
        "generation": max(row.generation for row in old) + 1,
        "paused": any(row.paused for row in old),
    }

    def change(rows: Sequence[ShardRow]) -> bool:
        """False when somebody has published since we asked, because we slept for longer than it stands aside."""
        if list(rows) != list(old):
            return False
        connection.execute(REMOVE_SHARDS, (relay,))
        connection.execute(ADD_SHARDS, values)
        return True

    return change


def _told(old: Sequence[ShardRow], marks: Sequence[Mark], shards: int) -> Resharded:
    positions = [mark.position for mark in marks]
    return Resharded(len(old), shards, min(positions), max(positions))
