"""Can this code read everything that the store holds?"""

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.progress import Progress

from counterfoil.output import complain, err, print_json, print_table
from domain.evolution import why_unreadable
from domain.loading import load_business
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from infrastructure.stored_topics import StoredTopic, count_topics


@dataclass(frozen=True)
class Checked(StoredTopic):
    problem: str | None


def check(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the topics and versions of all stored events. Exit code 1 when this code cannot read one of them.

    Run it before a release, with the new code, on the store that the release is for. It reads the whole table
    in short read-only statements, some seconds for a million events.
    """
    load_business()
    topics = [Checked(**asdict(each), problem=why_unreadable(each.topic, each.version)) for each in _count()]
    if as_json:
        print_json({"topics": [asdict(each) for each in topics]})
    else:
        rows = [(each.topic, each.version, each.count, each.first_position, each.problem or "ok") for each in topics]
        print_table("Stored events", ("topic", "version", "events", "first position", "this code"), rows)
    unreadable = [each for each in topics if each.problem]
    for each in unreadable:
        complain(
            f"{each.topic} v{each.version}: {each.problem}. "
            f"Events stored: {each.count}, the first at position {each.first_position}."
        )
    if unreadable:
        raise typer.Exit(1)


def _count() -> list[StoredTopic]:
    dsn = Settings.load().required_store_dsn()
    with (
        closing(connect(dsn, application_name="counterfoil db check")) as connection,
        Progress(console=err, transient=True) as progress,
    ):
        task = progress.add_task("reading stored events", total=None)
        return count_topics(connection, lambda at, end: progress.update(task, completed=at, total=end))
