"""What holds the relays of a store back?"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from threading import Event
from typing import Annotated

import typer
from rich.text import Text

from counterfoil.output import complain, out, print_fields, print_json
from infrastructure.checkpoint import CheckpointStatus, read_checkpoints
from infrastructure.event_reader import EventReader, HolderReport
from infrastructure.health import RELAYS, SET_BACK, was_set_back
from infrastructure.held_back import Hold, find_hold
from infrastructure.postgres import Connection, connect
from infrastructure.settings import Settings


@dataclass(frozen=True)
class Finding:
    """relay: None for a new one, which begins at position 0. position: the lowest of its shards.

    reasons: why the relay itself stands still, of each of its shards; None for one that does not.
    """

    relay: str | None
    position: int
    hold: Hold | None
    shards: Sequence[CheckpointStatus] = ()
    reasons: Sequence[str | None] = ()

    @property
    def held(self) -> bool:
        return bool(self.hold or any(self.reasons))

    @property
    def said(self) -> list[str]:
        """The reasons, each with its shard where there are several."""
        which = "shard {} " if len(self.shards) > 1 else ""
        pairs = zip(self.shards, self.reasons, strict=True)
        return [which.format(shard.shard) + reason for shard, reason in pairs if reason]


def why(
    name: Annotated[str | None, typer.Argument(help="A relay, such as domain.orders; all of them without it.")] = None,
    query: Annotated[bool, typer.Option("--query", help="Show query texts, which may quote data.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what holds relays back: a pause, a store that was set back, or open transactions. Exit code 3 when held.

    A transaction is named when it may still store an earlier event, and stored ones have waited for it for a
    second. `SELECT pg_terminate_backend(PID)` ends one by force; its own events are then rolled back.
    """
    stop = Event()  # nobody sets it: Ctrl-C ends the command, and never with the answer that nothing is held
    with closing(connect(Settings.load().required_store_dsn(), application_name="counterfoil why")) as store:
        findings = _examine(store, name, stop)
        writers = EventReader(store).why()
    if as_json:
        print_json({"relays": [_fields(each, query) for each in findings], "open_writers": _rows(writers, query)})
    else:
        _print(findings, writers, query)
    if any(each.held for each in findings):
        raise typer.Exit(3)


def _examine(store: Connection, name: str | None, stop: Event) -> list[Finding]:
    names = [name] if name else [relay for (relay,) in store.execute(RELAYS)]
    relays = [shards for each in names if (shards := read_checkpoints(store, each))]
    if name and not relays:
        complain(f"No relay {name!r} has ever run on this store.")
        raise typer.Exit(1)
    if not relays:
        return [Finding(None, 0, find_hold(EventReader(store), 0, stop))]
    return [_finding(store, shards, stop) for shards in relays]


def _finding(store: Connection, shards: Sequence[CheckpointStatus], stop: Event) -> Finding:
    lowest = min(shard.position for shard in shards)
    hold = find_hold(EventReader(store), lowest, stop)
    return Finding(shards[0].relay, lowest, hold, shards, [_reason(store, shard) for shard in shards])


def _reason(store: Connection, shard: CheckpointStatus) -> str | None:
    reasons = []
    if shard.paused:
        reasons.append(f"is paused since {shard.paused_since:%Y-%m-%d %H:%M:%S %Z}")
    if was_set_back(store, shard):
        reasons.append(f"is held: {SET_BACK}")
    return ", and ".join(reasons) or None


def _print(findings: Sequence[Finding], writers: Sequence[HolderReport], query: bool) -> None:
    for each in findings:
        relay = each.relay or "a new relay"
        for reason in each.said:
            complain(f"{relay} {reason}")
        if each.hold:
            complain(f"{relay} can go on to position {each.hold.position}; what is stored behind it waits for:")
            _print_holders(each.hold.by, query)
        if not each.held:
            out.print(Text(f"{relay}: no stored event waits for an open transaction."))
    if writers and not any(each.hold for each in findings):
        out.print("These have written events and are still open. They hold nothing back now:")
        _print_holders(writers, query)


def _print_holders(holders: Sequence[HolderReport], query: bool) -> None:
    """One below the other: a table would cut queries off where the terminal ends."""
    for row in _rows(holders, query):
        out.print()
        print_fields({name.replace("_", " "): value for name, value in row.items()})


def _fields(finding: Finding, query: bool) -> dict[str, object]:
    hold = finding.hold
    return {
        "relay": finding.relay,
        "position": finding.position,
        "held": finding.held,
        "held_after": hold.position if hold else None,
        "held_by": _rows(hold.by, query) if hold else [],
        "reason": "; ".join(finding.said) or None,
        "shards": [
            {"shard": each.shard, "position": each.position, "reason": reason}
            for each, reason in zip(finding.shards, finding.reasons, strict=True)
        ],
    }


def _rows(holders: Sequence[HolderReport], query: bool) -> list[dict[str, object]]:
    return [_row(each, query) for each in holders]


def _row(holder: HolderReport, query: bool) -> dict[str, object]:
    """Ages in seconds."""
    row = asdict(holder)
    age = row.pop("transaction_age")
    text = row.pop("query")
    row["transaction_seconds"] = None if age is None else round(age.total_seconds(), 1)
    return row | ({"query": text and " ".join(text.split())} if query else {})
