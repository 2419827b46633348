"""The business is loaded by convention: every folder in here, with all its modules. There is no registry to edit."""

import pkgutil
from importlib import import_module

import domain


def load_business() -> tuple[str, ...]:
    """Imports all of it, so that this process knows every stored topic; returns the names of the folders.

    Whatever reads the events of a store needs the classes of all who write to it, and not of one folder only.
    What goes wrong inside a module comes through unchanged.
    """
    folders = tuple(sorted(each.name for each in pkgutil.iter_modules(domain.__path__) if each.ispkg))
    for folder in folders:
        package = import_module(f"domain.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return folders
