"""Make a projection's tables anew from all stored events, swap them in, and go back if that was wrong."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterfoil import arguments
from counterfoil.groups import RunUnlessTold
from counterfoil.output import err, print_json, print_table
from domain.loading import load_business
from infrastructure.garbage import collect_rarely
from infrastructure.settings import Settings, SettingsError
from infrastructure.supervisor import stop_on_signals
from projections import rebuild
from projections.loading import all_projections
from projections.rebuilding import state
from projections.rebuilding.compare import MOST_TOLD
from projections.rebuilding.compared import Compared
from projections.rebuilding.errors import RebuildRefused, TablesDiffer
from projections.rebuilding.opening import opened
from projections.rebuilding.schema import live_schema
from projections.rebuilding.session import Tell
from projections.rebuilding.swap import Swapped
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import TopicsUnreadable

app = typer.Typer(
    cls=RunUnlessTold,
    no_args_is_help=True,
    subcommand_metavar="MODULE | COMMAND [ARGS]...",
    help="Make a projection's tables anew from all events: `rebuild projections.inventory`. Then confirm or roll back.",
)

INTERRUPTED = 130

Module = Annotated[str, typer.Argument(help="Module of the projection, such as projections.inventory.")]
Patience = Annotated[
    float,
    typer.Option(
        help="Seconds to wait for the live runner to come as far, and for the swap's locks.",
        callback=arguments.seconds_to_wait,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    module: Module,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that share the work, where the projection allows it.")
    ] = None,
    swap: Annotated[bool, typer.Option(help="With --no-swap it ends after the comparison.")] = True,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Swap also when rows differ from the live ones.")
    ] = False,
    from_topic: Annotated[
        bool, typer.Option("--from-topic", help="Read the projection's topics: where the store cannot be reached.")
    ] = False,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="With --from-topic: also when records of the topics may be gone.")
    ] = False,
    patience: Patience = 60.0,
    as_json: AsJson = False,
) -> None:
    """Build the tables anew beside the live ones, compare, and swap. Interrupted or killed: run it again, it goes on.

    `run` may be left out. Exit code 1 when the tables differ; they are kept, and nothing is swapped then.
    """
    stop = stop_on_signals()
    collect_rarely()
    options = rebuild.Options(workers, swap, accept_differences, patience, from_topic, accept_missing)
    try:
        with _shown() as tell:
            outcome = rebuild.rebuild(_target(module), stop, options, tell)
    except TablesDiffer as differ:
        _print_compared(differ.tables, {"differences": differ.differences}, as_json)
        raise
    _print_compared(outcome.compared, asdict(outcome), as_json)
    _say_left_out(outcome.left_out)
    _say_swapped(module, outcome.swapped, outcome.stopped)
    if swap is False and not outcome.stopped:
        typer.echo(f"Nothing was swapped. `counterfoil rebuild {module}` goes on from here.", err=True)


@app.command()
def rollback(module: Module, patience: Patience = 60.0) -> None:
    """Go back to the tables that were live before the swap, once they have caught up. Done again, it goes forward."""
    stop = stop_on_signals()
    with _shown() as tell:
        swapped = rebuild.roll_back(_target(module), stop, patience, tell)
    _say_swapped(module, swapped, swapped is None, "Back on the tables that were live before", "swaps them again")


@app.command()
def confirm(module: Module) -> None:
    """Drop the tables that were live before the swap. After that there is no way back."""
    rebuild.confirm(_target(module))
    typer.echo(f"The tables of {module} that were live before the last swap are dropped.", err=True)


@app.command()
def abandon(module: Module) -> None:
    """Drop what an unfinished rebuild has made."""
    rebuild.abandon(_target(module))
    typer.echo(f"The unfinished rebuild of {module} is dropped.", err=True)


@app.command()
def status(
    module: Annotated[str | None, typer.Argument(help="A projection; all of them without it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which rebuilds there are, and how far they are."""
    found = [row for name in ([module] if module else _with_a_database()) if (row := _status(name))]
    if as_json:
        print_json([_named(_STATUS, row) for row in found])
    else:
        print_table("Rebuilds", _STATUS, found)


_COLUMNS = ("table", "rows live", "rows rebuilt", "checksum live", "checksum rebuilt")
_STATUS = (
    "projection", "state", "source", "version", "position", "highest position", "applied", "at work", "started at",
    "swapped at",
)  # fmt: skip
_StatusRow = tuple[str, str, str, int, int | None, int | None, int, bool, datetime, datetime | None]


def _target(module: str) -> Target:
    load_business()  # the store has the events of everybody
    settings = Settings.load()
    store_dsn = settings.store_dsn.get_secret_value() if settings.store_dsn else None
    return Target.of(module, store_dsn, kafka=settings)


def _print_compared(compared: Sequence[Compared], told: Mapping[str, object], as_json: bool) -> None:
    rows = [(each.table, each.live.rows, each.other.rows, each.live.checksum, each.other.checksum) for each in compared]
    if as_json:
        print_json({**told, "compared": [_named(_COLUMNS, row) for row in rows]})
    elif rows:
        print_table("Compared", _COLUMNS, rows)


def _named(columns: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    return {name.replace(" ", "_"): value for name, value in zip(columns, row, strict=True)}


def _say_left_out(positions: Sequence[int]) -> None:
    if positions:
        told = ", ".join(map(str, positions[:MOST_TOLD])) + (", ..." if len(positions) > MOST_TOLD else "")
        typer.echo(f"Left out, because `project skip` has passed them: {len(positions)} events ({told}).", err=True)


def _say_swapped(
    module: str, swapped: Swapped | None, stopped: bool, done: str = "Swapped", again: str = "goes back"
) -> None:
    if stopped:
        typer.echo("Interrupted. The same command goes on from here.", err=True)
        raise typer.Exit(INTERRUPTED)
    if swapped is None:
        return
    back = f"`counterfoil rebuild rollback {module}` {again}"
    if not swapped.returnable:
        back = "There is no way back: the live runner had not caught up, or events were in quarantine or are refused"
    typer.echo(
        f"{done}; readers waited {swapped.held * 1000:.0f} ms. {back}; "
        f"`counterfoil rebuild confirm {module}` drops the tables that are not in use.",
        err=True,
    )


def _with_a_database() -> Iterator[str]:
    for each in all_projections():
        with suppress(SettingsError):
            each.dsn()
            yield f"projections.{each.name}"


def _status(module: str) -> _StatusRow | None:
    target = _target(module)
    with closing(target.connect()) as connection:
        found = state.find(connection, target.name)
        if found is None:
            return None
        reached = state.progress(connection, target.name)
        partitions = state.partitions(connection, target.name)
        at_work = state.is_at_work(connection, target.name)
        done: int | None = None
        of: int | None = None
        # It is shown as far as it is known, whatever has become of its source.
        with (
            suppress(TopicsUnreadable, RebuildRefused),
            opened(target, connection, live_schema(connection), partitions) as source,
        ):
            done, of = source.extent(reached.positions)
    return (
        module,
        found.state.value,
        "topics" if partitions else "store",
        found.version,
        done,
        of,
        reached.applied,
        at_work,
        found.started_at,
        found.swapped_at,
    )


@contextmanager
def _shown() -> Iterator[Tell]:
    """On standard error: what is done, how many positions of how many, events a second, time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("preparing", total=None, rate="")

        def tell(doing: str, done: int, of: int) -> None:
            progress.update(task, description=doing, completed=done, total=of)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield tell
