"""Projections are loaded by name, by convention: `projections.inventory` has PROJECTION in `.projection`,
its MIGRATIONS in the package itself, and its database in COUNTERFOIL_INVENTORY_DSN."""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import projections
from domain.errors import CounterfoilError
from infrastructure.by_name import module_or_problem
from infrastructure.migrate import Migrations
from infrastructure.settings import projection_dsn
from projections.base import Projection


@dataclass(eq=False)
class NoSuchProjection(CounterfoilError):
    """name: the module that was asked for. problem: what it lacks of the convention."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name!r} is no projection: {self.problem}. See docs/new-aggregate.md."


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
    """By its module, such as `projections.inventory`.

    Raises NoSuchProjection; what goes wrong inside the module comes through unchanged.
    """
    migrations = _part(module, module, "MIGRATIONS")
    projection = _part(module, f"{module}.projection", "PROJECTION")
    return LoadedProjection(module.rpartition(".")[2], projection, migrations)


def all_projections() -> list[LoadedProjection]:
    """Of every folder in here."""
    folders = sorted(each.name for each in pkgutil.iter_modules(projections.__path__) if each.ispkg)
    return [load_projection(f"projections.{folder}") for folder in folders]


def _part(projection: str, module_name: str, part: str) -> Any:
    module = module_or_problem(module_name)
    if isinstance(module, str):
        raise NoSuchProjection(projection, module)
    if not hasattr(module, part):
        raise NoSuchProjection(projection, f"{module_name} has no {part}")
    return getattr(module, part)
