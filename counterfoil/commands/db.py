"""Schema of the event store and of the projections: every database whose connection string is set."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from counterfoil.commands.db_check import check
from counterfoil.output import print_json, print_table
from infrastructure.migrate import STORE_MIGRATIONS, Migrations, State
from infrastructure.migrate import migrate as migrate_database
from infrastructure.migrate import status as status_of_database
from infrastructure.settings import PREFIX, Settings, SettingsError
from projections.loading import all_projections

app = typer.Typer(no_args_is_help=True, help="Bring database schemas up to date, or show where they stand.")
app.command()(check)


@dataclass(frozen=True)
class Target:
    name: str
    dsn: str
    migrations: Sequence[Migrations]


@app.command()
def migrate() -> None:
    """Apply what is missing. Safe to repeat, to interrupt, and to run from several nodes at once."""
    applied = [
        (target.name, each.component, f"{each.version:04}", each.name)
        for target in targets()
        for each in migrate_database(target.dsn, target.migrations)
    ]
    if applied:
        print_table("Applied", ("database", "component", "version", "file"), applied)
    else:
        typer.echo("Nothing to do: every schema is up to date.", err=True)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show each migration and when it was applied. Exit code 3 when one is missing."""
    states = [
        (target.name, state) for target in targets() for state in status_of_database(target.dsn, target.migrations)
    ]
    if as_json:
        print_json([{"database": name, **vars(state)} for name, state in states])
    else:
        print_table(
            "Migrations", ("database", "component", "version", "file", "applied at"), [_row(*s) for s in states]
        )
    if any(state.applied_at is None for _, state in states):
        raise typer.Exit(3)


def targets() -> list[Target]:
    """The store and every projection folder that has migrations, as far as their databases are given."""
    found = []
    store = Settings.load().store_dsn
    if store is not None:
        found.append(Target("store", store.get_secret_value(), STORE_MIGRATIONS))
    for loaded in all_projections():
        with suppress(SettingsError):
            found.append(Target(loaded.name, loaded.dsn(), loaded.migrations))
    if not found:
        raise SettingsError((PREFIX + "STORE_DSN", PREFIX + "INVENTORY_DSN"), "no database is given")
    return found


def _row(database: str, state: State) -> tuple[object, ...]:
    return database, state.component, f"{state.version:04}", state.name, state.applied_at or "missing"
