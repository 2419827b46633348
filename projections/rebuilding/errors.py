"""What keeps a rebuild from going on. In every case the live tables are as they were."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import CounterfoilError
from projections.rebuilding.compared import Compared


@dataclass(eq=False)
class RebuildRefused(CounterfoilError):
    """It does not begin, or not go on, as things are. reason: what is in the way, and what to do about it."""

    projection: str
    reason: str

    def __str__(self) -> str:
        return f"Refused for {self.projection!r}: {self.reason}"


@dataclass(eq=False)
class RebuildStopped(CounterfoilError):
    """The handler failed at an event, or the event could not be mapped or read. What comes before it is kept.

    position: in the store, or the record's offset in `partition`, which names topic and number.
    problem: an error's class or SQLSTATE, or fields and rules; never a value.
    What to do: repair the code and run the same command again; it goes on from there.
    """

    projection: str
    position: int
    event_id: str | None
    problem: str
    partition: str | None = None

    def __str__(self) -> str:
        at = f"offset {self.position} of {self.partition}" if self.partition else f"position {self.position}"
        event = f"event {self.event_id} at {at}" if self.event_id else at
        or_discard = ", or discard the record from quarantine," if self.partition else ""
        return (
            f"The rebuild of {self.projection!r} stopped at {event}: {self.problem}. The live tables are untouched. "
            f"Repair the code{or_discard} and run the same command again; it goes on from there."
        )


@dataclass(eq=False)
class Superseded(CounterfoilError):
    """Another process has taken this rebuild over. This one has stopped writing."""

    projection: str

    def __str__(self) -> str:
        return f"Another process goes on with the rebuild of {self.projection!r}; this one has stopped."


@dataclass(eq=False)
class TablesDiffer(CounterfoilError):
    """The tables that were built do not agree with the live ones. They are kept, and nothing was swapped.

    differences: in words, with keys of rows, never with what else they hold. tables: as they were compared.
    other_schema: where the tables are that were built.
    What to do: look at them; then run the command again with --accept-differences, or `rebuild abandon`.
    """

    projection: str
    differences: Sequence[str]
    tables: Sequence[Compared] = ()
    other_schema: str = ""

    def __str__(self) -> str:
        told = "; ".join(self.differences)
        where = f" (schema {self.other_schema})" if self.other_schema else ""
        return (
            f"The tables built for {self.projection!r}{where} differ from the live ones: {told}. Nothing was swapped. "
            "Some may be as they should (docs/rebuild.md, Compare). Run it again with --accept-differences to swap all "
            "the same, or drop what was built with `counterfoil rebuild abandon MODULE`."
        )


@dataclass(eq=False)
class SwapBusy(CounterfoilError):
    """The swap did not get its locks, or the events kept coming faster than it could follow. Nothing was swapped.

    What to do: end long transactions on the projection's tables, then run the same command again.
    """

    projection: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"The tables of {self.projection!r} could not be had for the swap within {self.seconds:g} s. Nothing was "
            "swapped. End long transactions that use them, then run the same command again."
        )


@dataclass(eq=False)
class WorkerFailed(CounterfoilError):
    """A worker's process ended. cause: class or SQLSTATE. What to do: run the same command again; it goes on."""

    projection: str
    cause: str

    def __str__(self) -> str:
        return (
            f"A worker of the rebuild of {self.projection!r} ended ({self.cause}). Run it again; it goes on from there."
        )
