"""A module that somebody names on the command line, found by convention."""

from importlib import import_module
from types import ModuleType


def module_or_problem(name: str) -> ModuleType | str:
    """The module, or in words why there is none. What goes wrong inside of it comes through unchanged."""
    if not all(part.isidentifier() for part in name.split(".")):
        return "that is not the name of a module"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return f"there is no module {error.name}"
