"""How often Python looks for cycles of objects that nobody uses any more."""

import gc

OBJECTS = 100_000
"""Made and not given back between two looks; 700 or 2,000 if nothing is said."""


def collect_rarely() -> None:
    """For a process that handles events by the page. To be called once, at its start.

    Events and messages live as long as their page and form no cycles, and yet each look goes through those that are
    under way: it took a quarter of the time.
    """
    gc.set_threshold(OBJECTS)
