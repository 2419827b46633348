"""A relay of parcels as a process, which can be told to kill or to stop itself at a certain point of a batch.

python -m tests.support.relay_program TOPIC NAME [--at POINT] [--batch N] [--signal KILL] [--slow SECONDS]
"""

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from threading import Event

from infrastructure import logs
from infrastructure.publisher import KafkaPublisher, Mark, OutgoingMessage, Sending
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


class Interrupted:
    """A publisher around Kafka's that sends this process a signal at one point of the n-th batch."""

    def __init__(self, inner: KafkaPublisher, at: str | None, batch: int, signum: int, slow: float) -> None:
        self._inner, self._at, self._signum, self._slow = inner, at, signum, slow
        # After the checkpoint of a batch nothing happens until the next one is read.
        self._batch = batch + 1 if at == AFTER_CHECKPOINT else batch
        self._count = 0
        self._signalled = False

    def resume(self, stored: Mark, turn: Turn) -> Mark:
        return self._inner.resume(stored, turn)

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Turn) -> Sending:
        self._count += 1
        self._signalled = False
        if self._at in (BEFORE_PRODUCE, AFTER_CHECKPOINT):
            self._now()
        self._sending = self._inner.send(messages, covers, turn)
        return self

    def wait(self, stop: Event, turn: Turn) -> int:
        published = self._sending.wait(stop, self._then(turn) if self._at == BEFORE_ACK else turn)
        if self._at == BEFORE_CHECKPOINT:
            self._now()
        self._take_time(turn)
        return published

    def drop(self) -> None:
        self._sending.drop()

    def close(self) -> None:
        self._inner.close()

    def _then(self, turn: Turn) -> Turn:
        """The first turn of waiting comes when all that may go has been handed over, and no report was taken in."""

        def signalled() -> None:
            if not self._signalled:
                self._signalled = True
                self._now()
            turn()

        return signalled

    def _now(self) -> None:
        if self._count == self._batch:
            print(f"{signal.Signals(self._signum).name} {self._at}", flush=True)
            os.kill(os.getpid(), self._signum)

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
    signum = signal.Signals[f"SIG{asked.signal}"]
    publisher = Interrupted(KafkaPublisher(settings), asked.at, asked.batch, signum, asked.slow)
    relay = RelayLoop(parcel_outbox(asked.topic, asked.name), settings, lambda _shard: publisher)
    keep_running(relay.name, relay.run, stop)


if __name__ == "__main__":
    main()
