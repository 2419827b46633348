"""The providers of a projection, by convention: `projections.<name>.providers` has `open_providers(dsn)`."""

from infrastructure.by_name import module_or_problem
from projections.effects.worker import Providers
from projections.loading import NoSuchProjection


def load_providers(module: str, dsn: str) -> Providers:
    """Of a projection's module, such as `projections.notifications`. Raises NoSuchProjection when it has none."""
    name = f"{module}.providers"
    providers = module_or_problem(name)
    if isinstance(providers, str):
        raise NoSuchProjection(module, f"it asks for no effects: {providers}")
    if not hasattr(providers, "open_providers"):
        raise NoSuchProjection(module, f"{name} has no open_providers")
    opened: Providers = providers.open_providers(dsn)
    return opened
