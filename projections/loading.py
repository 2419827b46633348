"""Projections are loaded by name, by convention: `projections.inventory` has PROJECTION in `.projection`, and in the
package itself MIGRATIONS; FEED, "store" or "kafka", which is what it is without; and OUTBOX, the folders of the domain
whose mapping makes its contracts of stored events. Its database is COUNTERFOIL_INVENTORY_DSN, or with FEED = "store"
that of the event store."""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import projections
from domain.errors import CounterfoilError
from infrastructure.by_name import module_or_problem
from infrastructure.migrate import Migrations
from infrastructure.settings import Settings, projection_dsn
from projections.base import Projection


class Feed(StrEnum):
    """Where a projection's events come from."""

    KAFKA = "kafka"
    STORE = "store"


@dataclass(eq=False)
class NoSuchProjection(CounterfoilError):
    """name: the module that was asked for. problem: what it lacks of the convention."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name!r} is no projection: {self.problem}. See docs/new-aggregate.md."


@dataclass(eq=False)
class HasNoInbox(CounterfoilError):
    """The projection is fed by the store: it has neither an inbox nor a quarantine. name: its module."""

    name: str

    def __str__(self) -> str:
        return (
            f"{self.name!r} is fed by the event store and has neither inbox nor quarantine: an event that cannot be "
            "applied stops it, as `counterfoil status` says."
        )


@dataclass(frozen=True)
class LoadedProjection:
    """name: of its folder, such as `inventory`. outboxes: names for `load_outbox`, such as `domain.orders`."""

    name: str
    projection: Projection
    migrations: Sequence[Migrations]
    feed: Feed = Feed.KAFKA
    outboxes: tuple[str, ...] = ()

    def dsn(self) -> str:
        """Raises SettingsError when no database is given for it."""
        return Settings.load().required_store_dsn() if self.feed is Feed.STORE else projection_dsn(self.name)


def load_projection(module: str) -> LoadedProjection:
    """By its module, such as `projections.inventory`.

    Raises NoSuchProjection; what goes wrong inside the module comes through unchanged.
    """
    migrations = _part(module, module, "MIGRATIONS")
    projection = _part(module, f"{module}.projection", "PROJECTION")
    package = import_module(module)
    return LoadedProjection(
        module.rpartition(".")[2], projection, migrations, _feed(module, package), getattr(package, "OUTBOX", ())
    )


def load_with_inbox(module: str) -> LoadedProjection:
    """As `load_projection`, for what is about the inbox or the quarantine. Raises HasNoInbox too."""
    loaded = load_projection(module)
    if loaded.feed is Feed.STORE:
        raise HasNoInbox(module)
    return loaded


def all_projections() -> list[LoadedProjection]:
    """Of every folder in here that has a projection."""
    folders = sorted(each.name for each in pkgutil.iter_modules(projections.__path__) if each.ispkg)
    modules = [f"projections.{folder}" for folder in folders]
    return [load_projection(module) for module in modules if find_spec(f"{module}.projection")]


def _feed(module: str, package: Any) -> Feed:
    feed = getattr(package, "FEED", Feed.KAFKA)
    if feed not in list(Feed):
        raise NoSuchProjection(module, f"its FEED is none of {', '.join(Feed)}")
    if feed == Feed.STORE and not getattr(package, "OUTBOX", ()):
        raise NoSuchProjection(module, 'with FEED = "store" it needs an OUTBOX, such as ("domain.orders",)')
    return Feed(feed)


def _part(projection: str, module_name: str, part: str) -> Any:
    module = module_or_problem(module_name)
    if isinstance(module, str):
        raise NoSuchProjection(projection, module)
    if not hasattr(module, part):
        raise NoSuchProjection(projection, f"{module_name} has no {part}")
    return getattr(module, part)
