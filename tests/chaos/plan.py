"""What goes wrong, and when: made from a seed, so that the same seed makes the same plan."""

import random
from typing import NamedTuple

PROCESSES = ("relay", "runner", "writer", "parcels")

KINDS = (
    *((fleet, "kill") for fleet in PROCESSES),
    *((fleet, "freeze") for fleet in ("relay", "runner", "parcels")),
    *((fleet, "stop") for fleet in PROCESSES),
    ("connections", "cut"),
    ("connections", "silence"),
    ("postgres", "kill"),
    ("postgres", "restart"),
    ("kafka", "kill"),
    ("kafka", "restart"),
)

PACE = 1.1
"""Seconds between two accidents, on average."""


class Accident(NamedTuple):
    """at: seconds from the start, without the time that servers took to come back. whom, what: one of KINDS.
    member: which of the fleet, modulo its size. lasts: seconds, for those that pass."""

    at: float
    whom: str
    what: str
    member: int
    lasts: float


def plan(seed: int, seconds: float) -> list[Accident]:
    """Rounds of all kinds, each round in another order."""
    dice = random.Random(f"plan {seed}")
    accidents: list[Accident] = []
    at = 2.0
    while True:
        for whom, what in dice.sample(KINDS, len(KINDS)):
            if at > seconds:
                return accidents
            lasts = round(dice.choice([0.5, 3.0, 8.0]), 1) if what == "freeze" else round(dice.uniform(0.1, 3.0), 1)
            accidents.append(Accident(round(at, 1), whom, what, dice.randrange(100), lasts))
            at += dice.uniform(0.2, 2 * PACE)
