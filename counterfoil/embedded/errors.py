"""What can go wrong with a service that we start ourselves."""

from dataclasses import dataclass

from domain.errors import CounterfoilError


@dataclass(eq=False)
class ServiceBinariesMissing(CounterfoilError):
    """There is no program to start.

    service: its name. remedy: one sentence that says how to get it.
    """

    service: str
    remedy: str

    def __str__(self) -> str:
        return f"No program for {self.service} is found on this machine. {self.remedy}"


@dataclass(eq=False)
class ServiceFailed(CounterfoilError):
    """A service did not start, or did not get ready in time; it has been stopped.

    service: its name. problem: what we saw. log_tail: the end of its own log, as text.

    What to do: the reason is nearly always in `log_tail`.
    """

    service: str
    problem: str
    log_tail: str

    def __str__(self) -> str:
        log = self.log_tail.strip() or "(it is empty)"
        return f"{self.service} {self.problem}. The end of its log:\n{log}"
