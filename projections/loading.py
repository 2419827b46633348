"""Projections are loaded by name, by convention: `projections.inventory` has PROJECTION in `.projection`,
its MIGRATIONS in the package itself, and its database in COUNTERFOIL_INVENTORY_DSN."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass

import projections
from domain.errors import CounterfoilError
from infrastructure.migrate import Migrations
from infrastructure.settings import projection_dsn
from projections.base import Projection


@dataclass(eq=False)
class NoSuchProjection(CounterfoilError):
    """name: the module that was asked for. missing: what it lacks of the convention."""

    name: str
    missing: str

    def __str__(self) -> str:
        return f"{self.name} is no projection: it has no {self.missing}. See docs/new-aggregate.md."


@dataclass(frozen=True)
class LoadedProjection:
    """name: of its folder, such as `inventory`."""

    name: str
    projection: Projection
    migrations: Sequence[Migrations]

    def dsn(self) -> str:
        """Raises SettingsError when no database is given for it."""
        return projection_dsn(self.name)


def load_projection(module: str) -> LoadedProjection:
    """By its module, such as `projections.inventory`. Raises NoSuchProjection."""
    try:
        package = importlib.import_module(module)
        loaded = importlib.import_module(f"{module}.projection")
    except ModuleNotFoundError as error:
        if error.name not in (module, f"{module}.projection"):
            raise
        raise NoSuchProjection(module, f"module {error.name}") from None
    for holder, name in ((package, "MIGRATIONS"), (loaded, "PROJECTION")):
        if not hasattr(holder, name):
            raise NoSuchProjection(module, name)
    return LoadedProjection(module.rpartition(".")[2], loaded.PROJECTION, package.MIGRATIONS)


def all_projections() -> list[LoadedProjection]:
    """Of every folder in here."""
    folders = sorted(each.name for each in pkgutil.iter_modules(projections.__path__) if each.ispkg)
    return [load_projection(f"projections.{folder}") for folder in folders]
