"""Hints that something new may be stored, or projected, so that readers need not wait for their next poll.

A hint is sent after the commit, on a connection of its own: a NOTIFY inside the append would take a lock
of the whole server at commit. Hints may be lost, late or in vain. Nothing but speed depends on them.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Event
from time import monotonic
from typing import LiteralString

from infrastructure.fork import in_each_forked_child
from infrastructure.postgres import Timeouts, connect
from infrastructure.supervisor import Loop, beat

NOTIFY = "NOTIFY counterfoil_stored"
LISTEN = "LISTEN counterfoil_stored"
NOTIFY_PROJECTED = "NOTIFY counterfoil_projected"
LISTEN_PROJECTED = "LISTEN counterfoil_projected"
HEARTBEAT = "SELECT 1"


@dataclass(frozen=True)
class Pace:
    """How long a sender rests after a hint: `each` seconds for everything that it told of, at most `longest`.

    What comes less often than that is told of at once. A NOTIFY is a transaction of its own, and takes a lock of
    the whole server: what comes more often is told of together, by ever fewer hints.
    """

    each: float
    longest: float

    def rest_after(self, told: int) -> float:
        return min(told * self.each, self.longest)


STEADY = Pace(each=0.005, longest=0.005)
"""For those who are woken by hints alone. More hints would only wake the same readers again."""

SLOWING = Pace(each=0.02, longest=0.1)
"""For readers that read on by themselves: who has just found something looks again after `each`
(`relay_poll_busy`), so only one that rests for longer needs to be woken."""

SILENCE = 2.0
"""Seconds without a hint after which a listener asks whether its connection still lives."""

_TIMEOUTS = Timeouts(connect=3.0, statement=2.0, margin=0.5)
_TICK = 0.5


class HintSender:
    """Sends hints from one background thread, which the first hint starts.

    `hint()` never waits for the database and never fails. While the database is away hints are not queued:
    one is sent when it is back. While it rests they are not lost: one is sent afterwards, for all of them.
    A forked child gets a thread and a connection of its own.
    """

    def __init__(self, dsn: str, notify: LiteralString = NOTIFY, pace: Pace = STEADY) -> None:
        self._dsn, self._notify, self._pace = dsn, notify, pace
        self._closed = False
        self._rest_over: Event
        self._changed: Condition
        self._loop: Loop | None
        self._asked: int
        self._sent: int
        self._start_afresh()
        in_each_forked_child(self._start_afresh)

    def hint(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._asked += 1
            self._changed.notify_all()
            if self._loop is None:
                self._loop = Loop("hint-sender", self._run)
                with contextlib.suppress(RuntimeError):  # no more threads to be had, or the interpreter ends
                    self._loop.start()

    def close(self, within: float = 1.0) -> None:
        """Sends what is pending, so that a short-lived process is heard, but takes no longer than `within` seconds."""
        deadline = monotonic() + within
        self._rest_over.set()
        with self._changed:
            self._closed = True
            if self._loop is None or not self._loop.alive:
                return
            self._changed.wait_for(lambda: self._sent == self._asked, within)
            self._changed.notify_all()
        self._loop.stop(max(0.0, deadline - monotonic()))

    def _run(self, stop: Event) -> None:
        self._wait_for_something_to_send(stop)
        if stop.is_set():
            return
        with connect(self._dsn, application_name="counterfoil hints", timeouts=_TIMEOUTS) as connection:
            while not stop.is_set():
                asked = self._wait_for_something_to_send(stop)
                if told := asked - self._sent:
                    connection.execute(self._notify)
                    with self._changed:
                        self._sent = asked
                        self._changed.notify_all()
                    self._rest_over.wait(self._pace.rest_after(told))

    def _wait_for_something_to_send(self, stop: Event) -> int:
        with self._changed:
            while self._asked == self._sent and not self._closed and not stop.is_set():
                beat("hint-sender")
                self._changed.wait(_TICK)
            return self._asked

    def _start_afresh(self) -> None:
        self._changed, self._rest_over = Condition(), Event()
        self._asked = self._sent = 0
        self._loop = None


class HintListener:
    """Calls `wake` whenever a hint arrives, and once after each connect, for what went unheard before.

    Its connection must be direct, not through a pooler in transaction mode. It notices within a few seconds
    when the connection has died without a word, and makes a new one.
    """

    def __init__(self, dsn: str, wake: Callable[[], None], name: str = "hint-listener") -> None:
        self._dsn, self._wake, self._name = dsn, wake, name
        self._loop = Loop(name, self._run, grace=7.0)  # longer than connecting and one silent statement may take

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> bool:
        """True when the thread has ended."""
        return self._loop.stop()

    def _run(self, stop: Event) -> None:
        with connect(self._dsn, application_name="counterfoil listener", timeouts=_TIMEOUTS) as connection:
            connection.execute(LISTEN)
            self._wake()
            heard = monotonic()
            while not stop.is_set():
                beat(self._name)
                for _ in connection.notifies(timeout=_TICK, stop_after=1):
                    heard = monotonic()
                    self._wake()
                if monotonic() - heard > SILENCE:
                    connection.execute(HEARTBEAT)
                    heard = monotonic()
