"""External effects: send what projections asked for, and see what could not be sent."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from counterfoil.groups import RunUnlessTold
from counterfoil.output import print_json, print_table
from infrastructure import metrics, migrate
from infrastructure.first_connection import wait_for_database
from infrastructure.postgres import Connection, connect
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals
from projections.effects import queue
from projections.effects.loading import load_providers
from projections.effects.worker import Worker
from projections.loading import LoadedProjection, load_projection

app = typer.Typer(
    cls=RunUnlessTold,
    no_args_is_help=True,
    subcommand_metavar="MODULE | COMMAND [ARGS]...",
    help="Send the external effects that a projection asked for: `effects projections.notifications`.",
)

Module = Annotated[str, typer.Argument(help="Module of the projection, such as projections.notifications.")]


@app.command()
def run(module: Module) -> None:
    """Call providers until SIGTERM or Ctrl-C. Several may run: they share the work.

    Started while its database is away, it waits. `run` may be left out.
    """
    stop = stop_on_signals()
    settings, loaded = Settings.load(), load_projection(module)
    worker = Worker(loaded.projection.consumer_name, loaded.dsn(), load_providers(module, loaded.dsn()))
    metrics.serve(settings.metrics_port)
    if wait_for_database(loaded.dsn(), worker.name, lambda: migrate.check(loaded.dsn(), loaded.migrations), stop):
        keep_running(worker.name, worker.run, stop)


@app.command("list")
def list_(
    module: Module,
    most: Annotated[int, typer.Option("--limit", min=1, help="Show so many at most.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what waits and what its provider refused. Exit code 3 when something was refused."""
    loaded = load_projection(module)
    with closing(_connect(loaded)) as connection:
        found = queue.unsent(connection, loaded.projection.consumer_name, most)
        _, failed = queue.count(connection, loaded.projection.consumer_name)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        columns = ("id", "effect", "key", "asked for", "attempts", "state", "last problem")
        rows = [
            (
                each.id,
                each.effect,
                each.key,
                each.requested_at,
                each.attempts,
                "FAILED" if each.failed_at else f"due {each.due_at}",
                each.last_problem,
            )
            for each in found
        ]
        print_table("Effects not sent", columns, rows)
    if failed:
        raise typer.Exit(3)


@app.command()
def redrive(
    module: Module,
    effect_id: Annotated[str | None, typer.Argument(help="Id of one effect; all that failed without it.")] = None,
) -> None:
    """Try again what a provider refused, under the same idempotency key."""
    loaded = load_projection(module)
    with closing(_connect(loaded)) as connection:
        number = queue.redrive(connection, loaded.projection.consumer_name, effect_id)
    typer.echo(f"{number} effects wait again.", err=True)


def _connect(loaded: LoadedProjection) -> Connection:
    return connect(loaded.dsn(), application_name="counterfoil effects")
