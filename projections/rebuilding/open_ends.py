"""Rebuilds that somebody has to finish or to decide about, seen from outside."""

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection

from infrastructure.postgres import connect
from projections.loading import LoadedProjection
from projections.rebuilding import state
from projections.rebuilding.state import Rebuild, State


@dataclass(frozen=True)
class OpenEnd:
    """One projection's rebuild. state: as `rebuild status` has it. since: of the beginning, or of the swap.

    what_to_do: in words. It keeps nothing from draining.
    """

    projection: str
    state: str
    at_work: bool
    since: datetime
    what_to_do: str


def open_end(loaded: LoadedProjection) -> OpenEnd | None:
    """None when there is no rebuild. Raises SettingsError without a connection string, psycopg.Error."""
    name = loaded.projection.consumer_name
    with closing(connect(loaded.dsn(), application_name="counterfoil status")) as connection:
        found = state.find(connection, name)
        if found is None:
            return None
        at_work = state.is_at_work(connection, name)
        told = "a process works at it: see `counterfoil rebuild status`"
        if not at_work:
            told = _what_to_do(connection, found, loaded)
    return OpenEnd(loaded.name, found.state.value, at_work, found.swapped_at or found.started_at, told)


def _what_to_do(connection: Connection, found: Rebuild, loaded: LoadedProjection) -> str:
    module = f"projections.{loaded.name}"
    if found.state is State.FILLING:
        source = " --from-topic" if state.partitions(connection, loaded.projection.consumer_name) else ""
        return (
            f"not finished, and nobody works at it: `counterfoil rebuild {module}{source}` goes on, "
            f"`counterfoil rebuild abandon {module}` drops it"
        )
    back = f", `counterfoil rebuild rollback {module}` goes back" if found.returnable else "; there is no way back"
    drops = f"`counterfoil rebuild confirm {module}` drops the tables that were live before the last swap"
    return f"not confirmed: {drops}{back}"
