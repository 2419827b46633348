"""Forget which events were applied, where they cannot come again."""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from psycopg.errors import LockNotAvailable

from counterfoil.output import complain, err, print_json, print_table
from infrastructure.postgres import Connection, Timeouts, connect
from infrastructure.redeliverable import redeliverable
from infrastructure.settings import Settings
from infrastructure.supervisor import stop_on_signals
from projections import pruning
from projections.closed_records import remove_closed
from projections.inbox_ranges import make_ranges_ahead, now_ms
from projections.loading import Feed, LoadedProjection, all_projections, load_with_inbox
from projections.redelivery import limits, utc
from projections.verdicts import Limits, Verdict

app = typer.Typer(no_args_is_help=True, help="What a projection's inbox remembers of the events it has applied.")

_TIMEOUTS = Timeouts(lock=pruning.LOCK_SECONDS, statement=3_600.0)


@app.callback()
def _group() -> None:
    """Keeps `prune` a command of its own while it is the only one."""


@app.command()
def prune(
    module: Annotated[str, typer.Argument(help="Module of the projection, such as projections.inventory.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Drop nothing; say what keeps each range.")] = False,
    closed_days: Annotated[
        int | None,
        typer.Option(
            "--closed-before", min=0, metavar="DAYS", help="Also remove released entries and sent effects so old."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Drop the oldest ranges of event ids, as far as Kafka, the groups' offsets and the quarantine need none of them.

    An event from below what was dropped is quarantined as too old to tell, should it come again. Entries that were
    released from quarantine and effects that were sent go with --closed-before, by the same evidence.
    """
    if dry_run and closed_days is not None:
        raise typer.BadParameter("it rehearses the ranges alone", param_hint="--dry-run")
    stop = stop_on_signals()
    settings, loaded = Settings.load(), load_with_inbox(module)
    name = loaded.projection.consumer_name
    with closing(connect(loaded.dsn(), application_name="counterfoil inbox prune", timeouts=_TIMEOUTS)) as connection:
        try:
            known = _limits(settings, connection, loaded)
        except KafkaException as error:
            complain(f"Kafka did not say what it still holds ({error.args[0].name()}). Nothing was dropped.")
            raise typer.Exit(1) from None
        if dry_run:
            verdicts = pruning.examine(connection, name, known)
        else:
            with suppress(LockNotAvailable):  # others make them too, and nothing depends on it
                make_ranges_ahead(connection)
            verdicts = pruning.prune(connection, name, known, stop)
        if closed_days is not None:
            asked = now_ms(connection) - closed_days * 86_400_000
            removed = remove_closed(connection, name, known[name], asked, stop)
            err.print(
                f"{removed.released} released entries and {removed.sent} sent effects removed, "
                f"from before {utc(removed.before_ms)}"
            )
    _show(verdicts, dry_run, as_json)


def _limits(settings: Settings, connection: Connection, asked: LoadedProjection) -> Limits:
    """Of the projection that is asked for, and of the others that share its database."""
    here = set(pruning.consumers(connection))
    others = [each for each in all_projections() if each.projection.consumer_name in here and each.feed is Feed.KAFKA]
    now = now_ms(connection)
    found = {}
    for each in (asked, *others):
        name, topics = each.projection.consumer_name, each.projection.topics
        found[name] = limits(redeliverable(settings, name, topics), topics, now)
    return found


def _show(verdicts: Sequence[Verdict], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(each), "ends_at_ms": each.range.ends_at_ms} for each in verdicts])
        return
    fate = "can be dropped" if dry_run else "dropped"
    rows = [
        (
            f"evt_{each.range.digits}",
            utc(each.range.ends_at_ms),
            each.rows,
            each.bytes,
            "; ".join(each.kept_by) or fate,
        )
        for each in verdicts
    ]
    print_table("Ranges of past events", ("ids", "before", "rows", "bytes", "kept by"), rows)
