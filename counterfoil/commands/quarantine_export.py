"""A copy of a projection's quarantine in a topic, for those who watch dead letters there."""

from contextlib import closing
from typing import Annotated

import typer

from counterfoil.output import err
from infrastructure import migrate
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import stop_on_signals
from projections.loading import load_with_inbox
from projections.quarantine_export import export as export_to


def export(
    module: Annotated[str, typer.Argument(help="A projection, such as projections.inventory.")],
    topic: Annotated[str, typer.Option(help="Where to; it must exist.")],
) -> None:
    """Publish a copy of what is parked, and was not exported yet, to a dead-letter topic. Nothing is released by that.

    Killed in the middle, it exports some entries again. Run it as often as copies are wanted.
    """
    stop, settings, loaded = stop_on_signals(), Settings.load(), load_with_inbox(module)
    if topic in loaded.projection.topics:
        raise typer.BadParameter(f"{module} reads {topic!r}: it would read its own dead letters", param_hint="--topic")
    migrate.check(loaded.dsn(), loaded.migrations)
    with closing(connect(loaded.dsn(), application_name="counterfoil quarantine export")) as connection:
        exported = export_to(settings, connection, loaded.projection.consumer_name, topic, stop)
    err.print(f"{exported} exported to {topic}.")
