"""Run a projection: events from Kafka into its read model."""

from typing import Annotated

import typer

from infrastructure import metrics, migrate
from infrastructure.settings import Settings
from infrastructure.supervisor import keep_running, stop_on_signals
from projections.loading import load_projection
from projections.runner import Runner


def project(
    name: Annotated[str, typer.Argument(help="Module of the projection, such as projections.inventory.")],
) -> None:
    """Apply events from Kafka to a projection until SIGTERM or Ctrl-C. Several may run: they share the work."""
    stop = stop_on_signals()
    settings = Settings.load()
    loaded = load_projection(name)
    migrate.check(loaded.dsn(), loaded.migrations)
    metrics.serve(settings.metrics_port)
    keep_running(loaded.projection.consumer_name, Runner(loaded.projection, loaded.dsn(), settings).run, stop)
