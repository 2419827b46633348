"""Run a relay, stored events to Kafka; change it, and say what holds one back."""

from contextlib import closing
from typing import Annotated

import typer

from counterfoil.commands.relay_changes import pause, reshard, resume, rewind
from counterfoil.commands.relay_why import why
from counterfoil.groups import RunUnlessTold
from domain.loading import load_business
from infrastructure import metrics, migrate
from infrastructure.first_connection import wait_for_database
from infrastructure.garbage import collect_rarely
from infrastructure.outbox import load_outbox
from infrastructure.pooler import require_direct
from infrastructure.postgres import connect
from infrastructure.relay_loop import RelayLoop
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals

app = typer.Typer(
    cls=RunUnlessTold,
    no_args_is_help=True,
    subcommand_metavar="MODULE | COMMAND [ARGS]...",
    help="Publish stored events to Kafka: `relay domain.orders`. Pause, rewind or reshard it; say what holds it.",
)


@app.command()
def run(
    module: Annotated[str, typer.Argument(help="The aggregate's module, such as domain.orders.")],
) -> None:
    """Publish stored events to Kafka until SIGTERM or Ctrl-C. Several may run: they share the relay's shards.

    Who finds no shard stands by. Started while PostgreSQL or Kafka is away, it waits. `run` may be left out.
    """
    stop = stop_on_signals()
    settings = Settings.load()
    load_business()  # a relay meets the events of all who share the store
    outbox = load_outbox(module)
    dsn = settings.required_store_dsn()
    metrics.serve(settings.metrics_port)
    if not wait_for_database(dsn, outbox.name, lambda: _check(dsn), stop):
        return
    collect_rarely()
    keep_running(outbox.name, RelayLoop(outbox, settings).run, stop)


def _check(dsn: str) -> None:
    with closing(connect(dsn, application_name="counterfoil relay")) as store:
        require_direct(store, "a relay, which listens for hints,")
    migrate.check(dsn, migrate.STORE_MIGRATIONS)


app.command()(pause)
app.command()(resume)
app.command()(rewind)
app.command()(reshard)
app.command()(why)
