"""What a relay is doing, as logs and metrics say it: of each shard that a process holds, and of the process."""

import logging
from enum import StrEnum

from infrastructure import metrics

logger = logging.getLogger(__name__)

PROCESS = "all"
"""Stands where the number of a shard would, for the process as a whole."""


class State(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    """Other processes have all the shards."""
    PAUSED = "paused"
    """An operator has paused the relay, or a command needs it to stand aside for a moment."""
    WORKING = "working"
    """The process holds at least one shard."""
    RELAYING = "relaying"
    WAITING_FOR_KAFKA = "waiting_for_kafka"
    WAITING_FOR_STORE = "waiting_for_store"
    HELD = "held"
    """The store was set back behind what was published; an operator decides, see docs/operations.md."""
    STOPPED = "stopped"


_TROUBLE = (State.WAITING_FOR_KAFKA, State.WAITING_FOR_STORE, State.HELD)


class Announcer:
    """Says each change of state once, with the reason; an unchanged state stays quiet."""

    def __init__(self, relay: str, shard: int | None = None) -> None:
        """shard: None for the process."""
        self._relay, self._shard = relay, PROCESS if shard is None else str(shard)
        self._said: tuple[State, str | None] | None = None

    def enter(self, state: State, reason: str | None = None) -> None:
        if self._said == (state, reason):
            return
        self._said = (state, reason)
        for each in State:
            metrics.RELAY_STATE.labels(self._relay, self._shard, each).set(each is state)
        level = logging.WARNING if state in _TROUBLE else logging.INFO
        fields = {"relay": self._relay, "shard": self._shard, "state": str(state), "reason": reason}
        logger.log(level, "relay state", extra=fields)

    def show(self, position: int, held: bool) -> None:
        metrics.RELAY_POSITION.labels(self._relay, self._shard).set(position)
        metrics.RELAY_HELD.labels(self._relay, self._shard).set(held)

    def show_lag(self, events: int) -> None:
        metrics.RELAY_LAG.labels(self._relay, self._shard).set(events)

    def fall_silent(self) -> None:
        """A shard that another process has now: its figures here would only grow old."""
        self.enter(State.STOPPED)
        for gauge in (metrics.RELAY_POSITION, metrics.RELAY_HELD, metrics.RELAY_LAG, metrics.RELAY_PARKED):
            gauge.remove_by_labels({"relay": self._relay, "shard": self._shard})
        metrics.RELAY_STATE.remove_by_labels({"relay": self._relay, "shard": self._shard})
