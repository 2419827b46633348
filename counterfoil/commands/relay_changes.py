"""Pause a relay, resume it, move it back, and change the number of its shards."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from threading import Event
from typing import Annotated

import typer

from counterfoil.arguments import seconds_to_wait
from counterfoil.output import err, out
from infrastructure import relay_changes
from infrastructure.event_reader import EventReader
from infrastructure.lease import register
from infrastructure.outbox import load_outbox
from infrastructure.pooler import require_direct
from infrastructure.postgres import Connection, connect
from infrastructure.publishers import publisher_for
from infrastructure.resharding import MOST_SHARDS
from infrastructure.resharding import reshard as change_shards
from infrastructure.settings import Settings

Name = Annotated[str, typer.Argument(metavar="MODULE", help="The relay, such as domain.orders.")]
Wait = Annotated[
    float,
    typer.Option(metavar="SECONDS", callback=seconds_to_wait, help="Longest wait until all shards were let go."),
]

_NEVER = Event()
"""Ctrl-C ends these commands, and what they asked for runs out or stays as they say."""


def pause(name: Name, wait: Wait = 60.0) -> None:
    """Let nobody publish for a relay until it is resumed, whatever is restarted meanwhile."""
    with _store() as store, _waiting():
        relay_changes.pause(store, name, wait, _NEVER)
    out.print(f"{name} is paused. To go on: counterfoil relay resume {name}")


def resume(name: Name) -> None:
    """Let a paused relay go on where it stood."""
    with _store() as store:
        relay_changes.resume(store, name)
    out.print(f"{name} goes on.")


def rewind(
    name: Name,
    to: Annotated[int | None, typer.Option(min=0, metavar="POSITION", help="Publish again what follows it.")] = None,
    to_start: Annotated[bool, typer.Option("--to-start", help="Publish everything again.")] = False,
    wait: Wait = 60.0,
) -> None:
    """Publish again what a relay has published since a position, under the same event ids.

    Consumers that dedupe by event id apply nothing twice. The relay stands aside for the change, and then goes on;
    one that is paused stays so. Where the store was set back, this ends the alarm.
    """
    if (to is None) != to_start:
        raise typer.BadParameter("give either --to POSITION or --to-start")
    position = 0 if to is None else to
    with _store() as store, _waiting():
        moved = relay_changes.rewind(store, name, position, wait, _NEVER)
    for row in moved:
        out.print(f"{name}, shard {row.shard}: from position {row.position} back to {position}.")


def reshard(
    module: Name,
    shards: Annotated[int, typer.Option(min=1, max=MOST_SHARDS, help="How many there shall be.")],
    wait: Wait = 60.0,
) -> None:
    """Change the number of a relay's shards. Nothing is left out, and the order per key is kept.

    All new shards begin at the lowest position of the old ones, so some events are published a second time, under
    the same ids. The relay stands aside for the change, and then goes on; one that is paused stays so.
    Where it delivers effectively once, give this command the relay's settings, else it refuses: it asks Kafka what
    the old shards have committed, and ends what they have left open.
    """
    settings, outbox = Settings.load(), load_outbox(module)  # a mistyped name would make a relay that nobody runs
    with _store() as store, _waiting():
        register(store, module)
        open_one = partial(publisher_for, settings, EventReader(store).namespace(), outbox)
        ask = None if settings.relay_delivery == "at-least-once" else open_one
        done = change_shards(store, module, shards, wait, _NEVER, ask)
    if done.before == done.after:
        out.print(f"{module} has {shards} already. Nothing was changed.")
        return
    out.print(f"{module}: {done.before} shards before, {done.after} now, from position {done.position} on.")
    if done.repeats_up_to > done.position:
        out.print(f"Events up to position {done.repeats_up_to} may be published a second time, under the same ids.")


@contextmanager
def _store() -> Iterator[Connection]:
    with closing(connect(Settings.load().required_store_dsn(), application_name="counterfoil relay change")) as store:
        require_direct(store, "a change of a relay, for its lock,")
        yield store


@contextmanager
def _waiting() -> Iterator[None]:
    with err.status("Waiting until the processes have let go of their shards ..."):
        yield
