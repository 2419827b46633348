"""The command line. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 unhealthy."""

import sys

import psycopg
import typer
from pydantic import ValidationError

from counterfoil.commands import db, orders, relay, stock
from counterfoil.commands.demo import demo
from counterfoil.commands.project import project
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


@app.callback()
def configure_logs() -> None:
    """Before any command: Python's own log format would print the texts of exceptions."""
    settings = Settings.load()
    logs.configure(settings.log_format, settings.log_level)


app.command()(demo)
app.add_typer(db.app, name="db")
app.add_typer(orders.app, name="orders")
app.add_typer(stock.app, name="stock")
app.add_typer(relay.app, name="relay")
app.command()(project)
app.command()(status)


def main() -> None:
    try:
        app()
    except CounterfoilError as error:
        complain(str(error))
        sys.exit(1)
    except ValidationError as error:
        complain(problems_of(error))
        sys.exit(1)
    except psycopg.Error as error:  # its text may quote the connection string
        complain(
            f"The database did not do it ({error.sqlstate or type(error).__name__}). Is the DSN right, and is it up?"
        )
        sys.exit(1)
