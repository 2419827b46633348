"""Print what stored events tell the world, as JSON Lines: to look at history, or to feed another tool."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Annotated

import typer

from counterfoil import arguments
from domain.errors import CounterfoilError
from domain.loading import load_business
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.garbage import collect_rarely
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import stop_on_signals

PAGE = 1_000
PAGE_BYTES = 8 * 2**20

INTERRUPTED = 130
READER_LEFT = 141
"""As a shell says it of a program that writes into a closed pipe: 128 and the number of SIGPIPE."""


@dataclass(eq=False)
class NotSettled(CounterfoilError):
    """There are more events, but one of a lower position may still appear. position: of the last that was delivered.

    What to do: run it again from the next position once the transactions that are writing events have ended.
    """

    position: int

    def __str__(self) -> str:
        return (
            f"Stopped after position {self.position}: of a transaction that is still open, an event may appear next, "
            f"before others that are there already. Go on with --from {self.position + 1} when it has ended."
        )


def replay(
    module: Annotated[str, typer.Argument(help="The aggregate's module, such as domain.orders.")],
    first: Annotated[int, typer.Option("--from", min=1, help="First position.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last position; without it, the end.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only what is told under this key.", callback=arguments.identifier)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Map everything and print only how many.")] = False,
) -> None:
    """Print contracts as they were or will be published, one JSON document a line. Changes and sends nothing.

    A reader that has enough may close the pipe, as `head` does: then it ends with exit code 141, and says nothing.
    Exit code 1 at an event that cannot be mapped, and before one that may not be delivered yet, because a lower
    position may still appear; it names the position.
    """
    stop = stop_on_signals()
    with _quiet_when_the_reader_leaves():
        _replay(module, first, last, key, dry_run, stop)
        sys.stdout.flush()
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)


def _replay(module: str, first: int, last: int | None, key: str | None, dry_run: bool, stop: Event) -> None:
    load_business()
    outbox = load_outbox(module)
    collect_rarely()
    events = contracts = 0
    with closing(connect(Settings.load().required_store_dsn(), application_name="counterfoil replay")) as store:
        reader = EventReader(store)
        mapper = MessageMapper(outbox, reader.namespace())
        for event in _stored(reader, first, last, stop):
            told = [each for each in mapper.contracts(event) if key is None or each.key == key]
            if not dry_run:
                sys.stdout.buffer.writelines(each.to_bytes() + b"\n" for each in told)
            contracts += len(told)
            events += 1
    if dry_run:
        typer.echo(f"{events} events become {contracts} contracts.", err=True)


@contextmanager
def _quiet_when_the_reader_leaves() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is in the buffer still has to go
        raise typer.Exit(READER_LEFT) from None


def _stored(reader: EventReader, first: int, last: int | None, stop: Event) -> Iterator[RecordedEvent]:
    """Those between the two positions, until it is told to stop. Raises NotSettled."""
    position = first - 1
    while not stop.is_set() and (last is None or position < last):
        page = reader.read(position, PAGE, PAGE_BYTES)
        yield from (event for event in page.events if last is None or event.position <= last)
        if not page.events:
            if not page.settled:
                raise NotSettled(position)
            return
        position = page.events[-1].position
