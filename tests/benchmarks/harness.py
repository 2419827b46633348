"""Interleaved measuring: each round runs every contender once, so that a noisy minute hits all of them alike."""

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """run: does the work once and returns its rate in `unit` of its comparison."""

    name: str
    run: Callable[[], float]


@dataclass
class Comparison:
    """The first contender is the baseline. goal: what the ratio of the second should reach, for the reader."""

    title: str
    unit: str
    contenders: Sequence[Contender]
    goal: str = ""
    rounds: int = 5
    rates: dict[str, list[float]] = field(default_factory=dict)

    def measure(self) -> None:
        for _ in range(self.rounds):
            for contender in self.contenders:
                self.rates.setdefault(contender.name, []).append(contender.run())

    def report(self) -> None:
        baseline = statistics.median(self.rates[self.contenders[0].name])
        print(f"\n{self.title}" + (f"  (goal {self.goal})" if self.goal else ""))
        print(f"  {'':<34} {self.unit + ', median':>22} {'ratio':>8}   runs")
        for name, rates in self.rates.items():
            runs = " ".join(f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}" for rate in rates)
            median = statistics.median(rates)
            print(f"  {name:<34} {median:>22,.1f} {median / baseline:>8.2f}   {runs}", flush=True)


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {platform.system()}"
