"""Events that cannot go on as they are: look at them, try them again, or decide that they never will."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from counterfoil import arguments
from counterfoil.commands.quarantine_export import export
from counterfoil.output import complain, err, print_fields, print_json, print_table
from counterfoil.quarantine_incoming import open_incoming
from counterfoil.quarantine_outgoing import open_outgoing
from counterfoil.quarantine_side import DetailedEntry, Entry, QuarantineSide, Redriven
from infrastructure.supervisor import stop_on_signals

app = typer.Typer(
    no_args_is_help=True,
    help="Events that could not be published (MODULE domain.orders) or not be applied (MODULE projections.inventory).",
)

_SIDES = {"domain": open_outgoing, "projections": open_incoming}

Module = Annotated[str, typer.Argument(help="domain.orders, or projections.inventory.")]
EntryId = Annotated[int, typer.Argument(metavar="ID", help="Of the entry, as `list` shows it.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def _open(module: str) -> Iterator[QuarantineSide]:
    open_side = _SIDES.get(module.partition(".")[0])
    if open_side is None:
        raise typer.BadParameter(f"{module!r} is neither domain.<folder> nor projections.<folder>", param_hint="MODULE")
    side = open_side(module)
    try:
        yield side
    finally:
        side.close()


@app.command("list")
def list_(
    module: Module,
    key: Annotated[str | None, typer.Option(help="Only the entries of this key.")] = None,
    closed: Annotated[bool, typer.Option("--closed", help="Released and discarded ones, too.")] = False,
    limit: Annotated[int, typer.Option(help="How many at most, the oldest first.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List what is in quarantine, the oldest first."""
    with _open(module) as side:
        found = side.list(key=key, closed=closed, limit=limit + 1)
    shown = found[:limit]
    if as_json:
        print_json([asdict(each) for each in shown])
    else:
        _print(module, shown)
    if len(found) > limit:
        err.print(f"There are more than these {limit}: see --limit and --key.")


@app.command()
def show(
    module: Module,
    entry_id: EntryId,
    payload: Annotated[bool, typer.Option("--payload", help="Show the event's own bytes, which quote data.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of one entry."""
    with _open(module) as side:
        fields = _fields(side.show(entry_id), payload)
    if as_json:
        print_json(fields)
    else:
        print_fields({name.replace("_", " "): value for name, value in fields.items()})


@app.command()
def redrive(
    module: Module,
    key: Annotated[str | None, typer.Argument(help="Of which key.", show_default=False)] = None,
    every_key: Annotated[bool, typer.Option("--all", help="Of every key.")] = False,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the outcome.", callback=arguments.seconds_to_wait)
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Try again what is parked, in order. Exit code 1 when something of it is left in quarantine.

    A key ends at the first event that fails again; what is behind it stays parked.
    """
    if (key is None) is not every_key:
        raise typer.BadParameter("name one key, or say --all", param_hint="KEY")
    with _open(module) as side:
        redriven = side.redrive(key, wait=wait, stop=stop_on_signals())
    if as_json:
        print_json(asdict(redriven))
    else:
        _say(module, redriven)
    if redriven.left or redriven.pending:
        raise typer.Exit(1)


@app.command()
def discard(
    module: Module,
    entry_id: EntryId,
    reason: Annotated[str, typer.Option(help="Why it may never go on; kept with it.", callback=arguments.a_reason)],
    as_json: AsJson = False,
) -> None:
    """Decide that an event never goes on. It stays as a record; the rest of its key goes on with the next redrive."""
    with _open(module) as side:
        entry = side.discard(entry_id, reason, arguments.whoever_asks())
    if as_json:
        print_json(asdict(entry))
    else:
        _print(module, [entry])


app.command()(export)


def _print(module: str, entries: list[Entry]) -> None:
    print_table(
        f"Quarantine of {module}",
        ("id", "key", "kind", "state", "category", "reason", "place", "attempts", "since", "discarded because"),
        [
            (
                each.id,
                each.key,
                each.kind,
                each.state,
                each.category,
                each.reason,
                each.place,
                each.attempts,
                f"{each.quarantined_at:%Y-%m-%d %H:%M:%S}",
                each.closed_reason,
            )
            for each in entries
        ],
    )


def _say(module: str, redriven: Redriven) -> None:
    if not redriven.keys:
        err.print("Nothing of that is in quarantine.")
    else:
        err.print(f"{redriven.released} released, {redriven.left} left in quarantine.")
    if redriven.failed:
        _print(module, list(redriven.failed))
    if redriven.pending:
        complain(f"{redriven.pending} keys wait for their turn: it comes when {module} runs and has got to them.")


def _fields(detailed: DetailedEntry, payload: bool) -> dict[str, object]:
    shown = {"payload": detailed.payload and detailed.payload.decode(errors="backslashreplace")} if payload else {}
    return asdict(detailed.entry) | dict(detailed.details) | shown
