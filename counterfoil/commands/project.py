"""Run a projection: events into its read model, from Kafka or from the event store, as its folder says."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from counterfoil import arguments
from counterfoil.groups import RunUnlessTold
from counterfoil.output import complain
from domain.loading import load_business
from infrastructure import metrics, migrate
from infrastructure.first_connection import wait_for_database
from infrastructure.garbage import collect_rarely
from infrastructure.outbox import Outbox, load_outbox
from infrastructure.pooler import require_direct
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import Loop, keep_running, stop_on_signals
from projections.loading import Feed, LoadedProjection, load_projection
from projections.range_keeper import RangeKeeper
from projections.resharding import MOST_SHARDS, reshard
from projections.runner import Runner
from projections.skipping import skip as skip_event
from projections.store_process import StoreRunner

app = typer.Typer(
    cls=RunUnlessTold,
    no_args_is_help=True,
    subcommand_metavar="MODULE | COMMAND [ARGS]...",
    help="Apply events to a projection: `project projections.inventory`. Divide its work: `project shards`; "
    "pass an event that holds it: `project skip`.",
)

Module = Annotated[str, typer.Argument(help="Module of the projection, such as projections.inventory.")]


@app.command()
def run(
    module: Module,
    shard: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Work on this shard and no other; may be repeated. For projections fed by the store."),
    ] = None,
) -> None:
    """Apply events to a projection until SIGTERM or Ctrl-C. Several may run: they share the work.

    Started while PostgreSQL or Kafka is away, it waits. `run` may be left out.
    """
    stop = stop_on_signals()
    settings = Settings.load()
    loaded = load_projection(module)
    if loaded.feed is Feed.KAFKA and shard:
        raise typer.BadParameter(f"{module} is fed by Kafka, which shares out the work itself", param_hint="--shard")
    runner = _runner(loaded, settings, shard or [])
    name = loaded.projection.consumer_name
    metrics.serve(settings.metrics_port)
    if not wait_for_database(loaded.dsn(), name, lambda: _check(loaded, runner), stop):
        return
    collect_rarely()
    with _inbox_looked_after(loaded):
        keep_running(name, runner.run, stop)


@app.command()
def shards(
    module: Module,
    number: Annotated[int, typer.Argument(min=1, max=MOST_SHARDS, help="How many there shall be.")],
) -> None:
    """Divide the work on a projection that is fed by the store into so many shards, by aggregate.

    Its processes may be running: they go on with the new shards.
    """
    loaded = _load_store_fed(module, "whose partitions are its shards")
    migrate.check(loaded.dsn(), loaded.migrations)
    place = reshard(loaded.dsn(), loaded.projection, _outboxes(loaded), number)
    typer.echo(f"{module} has {number} shards, all at position {place.position}.", err=True)


@app.command()
def skip(
    module: Module,
    position: Annotated[int, typer.Argument(min=1, help="Of the event that holds it, as `counterfoil status` tells.")],
    reason: Annotated[str, typer.Option(help="Why it may do without the event; kept.", callback=arguments.a_reason)],
) -> None:
    """Let a projection that is fed by the store pass the event that holds it, without it. Its read model then lacks it.

    Deploying code that takes the event is nearly always right instead. What was skipped stays in `skipped_events`.
    """
    loaded = _load_store_fed(module, "and has a quarantine: see `counterfoil quarantine discard`")
    migrate.check(loaded.dsn(), loaded.migrations)
    with closing(connect(loaded.dsn(), application_name="counterfoil project skip")) as store:
        skipped = skip_event(store, loaded.projection.consumer_name, position, reason, arguments.whoever_asks())
    event = skipped.event_id or "an event that could not be mapped"
    typer.echo(f"{module} goes on behind position {position} without {event}: {skipped.held_reason}.", err=True)


def _load_store_fed(module: str, otherwise: str) -> LoadedProjection:
    loaded = load_projection(module)
    if loaded.feed is not Feed.STORE:
        complain(f"{module} is fed by Kafka, {otherwise}.")
        raise typer.Exit(1)
    return loaded


@contextmanager
def _inbox_looked_after(loaded: LoadedProjection) -> Iterator[None]:
    """What the store feeds has none."""
    if loaded.feed is Feed.STORE:
        yield
        return
    keeper = RangeKeeper(loaded.dsn(), loaded.projection.consumer_name)
    ranges = Loop(keeper.name, keeper.run)
    ranges.start()
    try:
        yield
    finally:
        ranges.stop()


def _runner(loaded: LoadedProjection, settings: Settings, only: list[int]) -> Runner | StoreRunner:
    if loaded.feed is Feed.STORE:
        return StoreRunner(loaded.projection, _outboxes(loaded), loaded.dsn(), settings, only)
    return Runner(loaded.projection, loaded.dsn(), settings)


def _check(loaded: LoadedProjection, runner: Runner | StoreRunner) -> None:
    if isinstance(runner, Runner):
        migrate.check(loaded.dsn(), loaded.migrations)
        return
    with closing(connect(loaded.dsn(), application_name="counterfoil project")) as store:
        require_direct(store, "a projection that is fed by the store, which keeps a lock in its session,")
    migrate.check(loaded.dsn(), loaded.migrations)
    runner.shards()  # a shard that is not there is said at once


def _outboxes(loaded: LoadedProjection) -> list[Outbox]:
    load_business()  # the store has the events of everybody
    return [load_outbox(name) for name in loaded.outboxes]
