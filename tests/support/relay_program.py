"""A relay of parcels as a process, which can be told to kill or to stop itself at a certain point of a batch.

python -m tests.support.relay_program TOPIC NAME [--at POINT] [--batch N] [--signal KILL] [--slow SECONDS]
"""

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from infrastructure import logs
from infrastructure.event_reader import EventReader
from infrastructure.lease import Shard
from infrastructure.postgres import connect
from infrastructure.publisher import Mark, OutgoingMessage, Publisher, Sending
from infrastructure.publishers import publisher_for
from infrastructure.relay_loop import RelayLoop
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals
from tests.support.parcels import parcel_outbox

Turn = Callable[[], None]

BEFORE_PRODUCE = "before-produce"
BEFORE_ACK = "before-ack"
BEFORE_CHECKPOINT = "before-checkpoint"
AFTER_CHECKPOINT = "after-checkpoint"
POINTS = (BEFORE_PRODUCE, BEFORE_ACK, BEFORE_CHECKPOINT, AFTER_CHECKPOINT)


@dataclass
class Trap:
    """A signal to this process at one point of the n-th batch that it sends, of whichever shard."""

    at: str | None
    batch: int
    signum: int
    count: int = 0

    def __post_init__(self) -> None:
        if self.at == AFTER_CHECKPOINT:  # after which nothing happens until the next batch is sent
            self.batch += 1

    def spring(self, *points: str) -> None:
        if self.at in points and self.count == self.batch:
            self.count += 1  # only once, also when it was only stopped and goes on
            print(f"{signal.Signals(self.signum).name} {self.at}", flush=True)
            os.kill(os.getpid(), self.signum)


class Interrupted:
    """A publisher around Kafka's, with a trap. slow: seconds that each acknowledgement takes longer."""

    def __init__(self, inner: Publisher, trap: Trap, slow: float) -> None:
        self._inner, self._trap, self._slow = inner, trap, slow

    def resume(self, stored: Mark, turn: Turn) -> Mark:
        return self._inner.resume(stored, turn)

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Turn) -> Sending:
        self._trap.count += 1
        self._trap.spring(BEFORE_PRODUCE, AFTER_CHECKPOINT)
        self._sending = self._inner.send(messages, covers, turn)
        return self

    def wait(self, stop: Event, turn: Turn) -> int:
        def waiting() -> None:
            """Its first call comes when all that may go has been handed over, and no report was taken in."""
            self._trap.spring(BEFORE_ACK)
            turn()

        published = self._sending.wait(stop, waiting)
        self._trap.spring(BEFORE_CHECKPOINT)
        self._take_time(turn)
        return published

    def drop(self) -> None:
        self._sending.drop()

    def close(self) -> None:
        self._inner.close()

    def _take_time(self, turn: Turn) -> None:
        """As if the acknowledgement had been long in coming."""
        until = time.monotonic() + self._slow
        while time.monotonic() < until:
            time.sleep(0.02)
            turn()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("name")
    parser.add_argument("--at", choices=POINTS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--slow", type=float, default=0.0)
    asked = parser.parse_args()
    stop = stop_on_signals()
    settings = Settings.load()
    logs.configure("text", "INFO")
    outbox = parcel_outbox(asked.topic, asked.name)
    trap = Trap(asked.at, asked.batch, signal.Signals[f"SIG{asked.signal}"])
    with connect(settings.required_store_dsn(), application_name="test") as store:
        namespace = EventReader(store).namespace()

    def publisher(shard: Shard) -> Publisher:
        return Interrupted(publisher_for(settings, namespace, outbox, shard), trap, asked.slow)

    keep_running(outbox.name, RelayLoop(outbox, settings, publisher).run, stop)


if __name__ == "__main__":
    main()
