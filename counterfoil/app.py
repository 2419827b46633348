"""All commands, and what is said when one fails."""

import sys
from importlib.metadata import version
from typing import Annotated

import psycopg
import typer
from pydantic import ValidationError

from counterfoil.commands import db, effects, inbox, orders, project, quarantine, rebuild, relay, stock, summary
from counterfoil.commands.contracts import contracts
from counterfoil.commands.demo import demo
from counterfoil.commands.replay import replay
from counterfoil.commands.status import status
from counterfoil.output import complain
from domain.errors import CounterfoilError, problems_of
from infrastructure import logs
from infrastructure.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Order events recorded once, published in order, applied exactly once.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"counterfoil {version('counterfoil')}")
        raise typer.Exit


@app.callback()
def configure_logs(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    # Before any command: Python's own log format would print the texts of exceptions.
    settings = Settings.load()
    logs.configure(settings.log_format, settings.log_level)


app.command()(demo)
app.add_typer(db.app, name="db")
app.add_typer(orders.app, name="orders")
app.add_typer(stock.app, name="stock")
app.add_typer(summary.app, name="summary")
app.add_typer(relay.app, name="relay")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(inbox.app, name="inbox")
app.add_typer(effects.app, name="effects")
app.add_typer(project.app, name="project")
app.add_typer(rebuild.app, name="rebuild")
app.command()(replay)
app.command()(contracts)
app.command()(status)


def run() -> None:
    """Runs the command that was asked for and ends the process; its exit code is 1 for every error we know."""
    try:
        app()
    except CounterfoilError as error:
        _fail(str(error))
    except ValidationError as error:
        _fail(problems_of(error))
    except psycopg.errors.UndefinedTable:
        _fail("The database lacks a table of ours: run `counterfoil db migrate`.")
    except psycopg.Error as error:  # its text may quote the connection string
        what = error.sqlstate or type(error).__name__
        _fail(f"The database did not do it ({what}). Is the DSN right, and is it up?")


def _fail(reason: str) -> None:
    complain(reason)
    sys.exit(1)
