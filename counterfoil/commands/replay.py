"""Print what stored events tell the world, as JSON Lines: to look at history, or to feed another tool."""

import sys
from contextlib import closing
from threading import Event
from typing import Annotated

import typer

from counterfoil import arguments
from domain.loading import load_business
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.supervisor import stop_on_signals

PAGE = 1_000
PAGE_BYTES = 8 * 2**20

INTERRUPTED = 130


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

    Exit code 1 at an event that cannot be mapped; it names its position.
    """
    stop = stop_on_signals()
    load_business()
    outbox = load_outbox(module)
    events = contracts = 0
    with closing(connect(Settings.load().required_store_dsn(), application_name="counterfoil replay")) as store:
        reader = EventReader(store)
        mapper = MessageMapper(outbox, reader.namespace())
        position = first - 1
        while page := _page(reader, position, last, stop):
            for event in page:
                told = [each for each in mapper.contracts(event) if key is None or each.key == key]
                if not dry_run:
                    sys.stdout.buffer.writelines(each.to_bytes() + b"\n" for each in told)
                contracts += len(told)
            events += len(page)
            position = page[-1].position
    if dry_run:
        typer.echo(f"{events} events become {contracts} contracts.", err=True)
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)


def _page(reader: EventReader, position: int, last: int | None, stop: Event) -> list[RecordedEvent]:
    """What comes next and may be delivered; nothing at the end, or when it was told to stop."""
    if stop.is_set() or (last is not None and position >= last):
        return []
    events = reader.read(position, PAGE, PAGE_BYTES).events
    return [event for event in events if last is None or event.position <= last]
