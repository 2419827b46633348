"""Relays for the tests: stepped by hand, or running in a thread until the test is over."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic

from infrastructure import metrics
from infrastructure.checkpoint import CheckpointStatus, read_checkpoint
from infrastructure.lease import Shard, acquire
from infrastructure.outbox import Outbox
from infrastructure.outbox_relay import Relay
from infrastructure.postgres import connect
from infrastructure.publisher import Mark, OutgoingMessage, Publisher, Sending
from infrastructure.relay_loop import RelayLoop
from infrastructure.settings import Settings
from tests.support.kafka import Kafka
from tests.support.processes import Program, Programs
from tests.support.published import Published
from tests.support.wait import eventually

Turn = Callable[[], None]

NEVER = Event()
ENDS_WITHIN = 15.0


@contextmanager
def relay_by_hand(
    dsn: str,
    outbox: Outbox,
    publisher: Publisher,
    *,
    batch_size: int = 500,
    batch_bytes: int = 16_000_000,
    lease: float = 60.0,
) -> Iterator[Relay]:
    """A relay that has the lease and does nothing by itself."""
    with connect(dsn, application_name="test relay") as connection:
        acquired = acquire(connection, outbox.name, lease)
        assert acquired is not None, "another relay has the lease"
        relay = Relay(outbox, publisher, *acquired, batch_size, batch_bytes)
        relay.connect(connection)
        yield relay


@contextmanager
def running(relay: RelayLoop) -> Iterator[None]:
    """Runs it in a thread, as a process would, and stops it at the end."""
    stop = Event()
    thread = Thread(target=relay.run, args=(stop,), name="relay")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(ENDS_WITHIN)
        assert not thread.is_alive(), "the relay did not stop"


def one(publisher: Publisher) -> Callable[[Shard], Publisher]:
    """The same publisher for every shard: for a relay that has one."""
    return lambda _shard: publisher


def settings_for(dsn: str, bootstrap: str, **values: object) -> Settings:
    return Settings.model_validate(
        {"store_dsn": dsn, "kafka_bootstrap_servers": bootstrap, "topic_partitions": 3, **values}
    )


def checkpoint_of(dsn: str, relay: str = "parcels") -> CheckpointStatus:
    """Its row, which is there once it has had the lease for the first time."""
    with connect(dsn, application_name="test") as connection:
        status = eventually(lambda: read_checkpoint(connection, relay))
        assert status is not None
        return status


def relay_program(
    programs: Programs, dsn: str, kafka: Kafka, topic: str, *arguments: str, **settings: float
) -> Program:
    """A relay of parcels, named `parcels`, as a process of its own; arguments as in relay_program.py."""
    env = {
        "COUNTERFOIL_STORE_DSN": dsn,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "COUNTERFOIL_TOPIC_PARTITIONS": "3",
        **{f"COUNTERFOIL_{name.upper()}": str(value) for name, value in settings.items()},
    }
    return programs.python("-m", "tests.support.relay_program", topic, "parcels", *arguments, env=env)


@dataclass
class Recorder:
    """A publisher that acknowledges everything, unless `answer` says otherwise, and remembers what it was given.

    covers: what each call would cover. resumed: what `resume` answers, if not what it was told. resumes: how often.
    """

    answer: Callable[[list[OutgoingMessage]], int] = len
    calls: list[list[OutgoingMessage]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    covers: list[Mark] = field(default_factory=list)
    dropped: int = 0
    resumed: Mark | None = None
    resumes: int = 0

    def resume(self, stored: Mark, turn: Turn) -> Mark:
        self.resumes += 1
        turn()
        return self.resumed or stored

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Turn) -> Sending:
        turn()
        self.calls.append(list(messages))
        self.times.append(monotonic())
        self.covers.append(covers)
        return _Recorded(self)

    def close(self) -> None:
        """Nothing to close."""

    @property
    def messages(self) -> list[OutgoingMessage]:
        return [message for call in self.calls for message in call]


@dataclass
class _Recorded:
    recorder: Recorder

    def wait(self, stop: Event, turn: Turn) -> int:
        turn()
        return self.recorder.answer(self.recorder.calls[-1])

    def drop(self) -> None:
        self.recorder.dropped += 1


def steps(found: Iterable[Published | OutgoingMessage], parcel: str | None = None) -> list[int]:
    """Which steps of the parcel there are, of all parcels without one, in order of first appearance."""
    seen = [
        (each.key, int(json.loads(each.value)["step"]))
        for each in found
        if parcel is None or each.key == parcel.encode()
    ]
    return [step for _, step in dict.fromkeys(seen)]


def in_order(found: Iterable[Published], parcel: str, count: int) -> bool:
    """Whether the first appearances of the parcel's steps are 1, 2, 3 ... up to count."""
    return steps(found, parcel) == list(range(1, count + 1))


def repeats_are_identical(found: Iterable[Published]) -> bool:
    """Whether all messages of one event are the same in key, value and headers, and so in event id."""
    by_event: dict[tuple[bytes, bytes], set[tuple[bytes, tuple[tuple[str, bytes], ...]]]] = {}
    for each in found:
        by_event.setdefault((each.key, dict(each.headers)["ce_sequence"]), set()).add((each.value, each.headers))
    return all(len(forms) == 1 for forms in by_event.values())


def state(relay: str, shard: int = 0) -> str | None:
    """The state that the metrics of this process show for the shard; None while it does not have it."""
    for metric in metrics.RELAY_STATE.collect():
        for sample in metric.samples:
            if (sample.labels["relay"], sample.labels["shard"], sample.value) == (relay, str(shard), 1):
                return sample.labels["state"]
    return None
