"""Run a relay: stored events to Kafka."""

from typing import Annotated

import typer

from infrastructure import logs, metrics, migrate
from infrastructure.outbox import load_outbox
from infrastructure.relay_loop import RelayLoop
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals


def relay(name: Annotated[str, typer.Argument(help="Module of the aggregate, such as domain.orders.")]) -> None:
    """Publish stored events to Kafka until SIGTERM or Ctrl-C. Several may run: one publishes, the others stand by."""
    stop = stop_on_signals()
    settings = Settings.load()
    logs.configure(settings.log_format, settings.log_level)
    outbox = load_outbox(name)
    migrate.check(settings.required_store_dsn(), migrate.STORE_MIGRATIONS)
    metrics.serve(settings.metrics_port)
    keep_running(outbox.name, RelayLoop(outbox, settings).run, stop)
