"""The same business at different times: a class as one release of the code has it, then as the next one does."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from types import ModuleType

from eventsourcing import utils

from domain import base
from domain.base import Aggregate

BEGINNING = """
from dataclasses import field
from typing import Annotated, Any, ClassVar
from pydantic import AfterValidator, AwareDatetime
from domain.base import Aggregate, Command, DomainError
"""


class Releases:
    """One release is in force at a time, as in one process. `install(source)` ends the one before."""

    def __init__(self) -> None:
        self._installed: ModuleType | None = None
        self._before = set(_topics())

    def install(self, source: str, module: str = "shop") -> type[Aggregate]:
        """Runs a module's source; returns the last aggregate that it defines."""
        self.withdraw()
        self._installed = sys.modules[module] = ModuleType(module)
        exec(BEGINNING + dedent(source), vars(self._installed))
        return [
            value
            for value in vars(self._installed).values()
            if isinstance(value, type) and issubclass(value, Aggregate) and value is not Aggregate
        ][-1]

    def withdraw(self) -> None:
        """Nothing is left of the release: its topics are unknown again."""
        if self._installed is not None:
            del sys.modules[self._installed.__name__]
            self._installed = None
        for topic in set(_topics()) - self._before:
            base._aggregates.pop(topic, None)
            base._events.pop(topic, None)
            utils._topic_cache.pop(topic, None)


@contextmanager
def releases() -> Iterator[Releases]:
    installed = Releases()
    try:
        yield installed
    finally:
        installed.withdraw()


def _topics() -> list[str]:
    return [*base._aggregates, *base._events]
