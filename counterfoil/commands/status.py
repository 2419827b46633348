"""Does everything drain? Store, relays and projections at a glance."""

from contextlib import closing, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from counterfoil.output import complain, print_json, print_table
from infrastructure.health import RelayHealth, ShardHealth, relay_health
from infrastructure.postgres import connect
from infrastructure.settings import PREFIX, Settings, SettingsError
from projections.health import ProjectionHealth
from projections.loading import all_projections
from projections.rebuilding.open_ends import OpenEnd, open_end
from projections.store_health import health_of


def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show how far relays and projections are, and rebuilds that are not finished or confirmed.

    Exit code 3 when something does not drain or needs a decision. A rebuild keeps nothing from draining.
    """
    settings = Settings.load()
    relays, projections = examine(settings)
    rebuilds = _open_rebuilds()
    if as_json:
        print_json(
            {
                "relays": [asdict(each) for each in relays],
                "projections": [asdict(each) for each in projections],
                "rebuilds": [asdict(each) for each in rebuilds],
            }
        )
    else:
        _print(relays, projections)
        _print_rebuilds(rebuilds)
    faults = ["no relay has ever run on this store: start one"] if settings.store_dsn and not relays else []
    faults += [f"relay {each.relay}: {each.fault}" for each in relays if each.fault]
    faults += [f"projection {each.projection}: {fault}" for each in projections for fault in each.faults]
    for fault in faults:
        complain(fault)
    if faults:
        raise typer.Exit(3)


def examine(settings: Settings) -> tuple[list[RelayHealth], list[ProjectionHealth]]:
    relays: list[RelayHealth] = []
    projections: list[ProjectionHealth] = []
    if settings.store_dsn is not None:
        with closing(connect(settings.required_store_dsn(), application_name="counterfoil status")) as store:
            relays = relay_health(store)
    for loaded in all_projections():
        with suppress(SettingsError):
            projections.append(health_of(settings, loaded))
    if settings.store_dsn is None and not projections:
        raise SettingsError((PREFIX + "STORE_DSN", PREFIX + "INVENTORY_DSN"), "no database is given")
    return relays, projections


def _print(relays: list[RelayHealth], projections: list[ProjectionHealth]) -> None:
    print_table(
        "Relays",
        ("relay", "shard", "position", "store's highest", "oldest waiting", "last beat", "in quarantine", "state"),
        [_row(relay, shard) for relay in relays for shard in relay.shards],
    )
    print_table(
        "Projections",
        ("projection", "records behind", "oldest waiting", "in quarantine", "state"),
        [
            (
                each.projection,
                "unknown" if each.lag is None else each.lag,
                _seconds(each.waiting_seconds),
                each.quarantined,
                "FAULT" if each.faults else "running",
            )
            for each in projections
        ],
    )


def _open_rebuilds() -> list[OpenEnd]:
    found = []
    for loaded in all_projections():
        with suppress(SettingsError):
            found.append(open_end(loaded))
    return [each for each in found if each]


def _print_rebuilds(rebuilds: list[OpenEnd]) -> None:
    if rebuilds:
        rows = [(each.projection, each.state, each.since, each.what_to_do) for each in rebuilds]
        print_table("Rebuilds", ("projection", "state", "since", "what to do"), rows)


def _row(relay: RelayHealth, shard: ShardHealth) -> tuple[object, ...]:
    return (
        relay.relay,
        f"{shard.shard} of {len(relay.shards)}",
        shard.position,
        relay.highest,
        _seconds(shard.waiting_seconds),
        _seconds(shard.beat_age),
        relay.quarantined if shard.shard == 0 else None,  # of all of them
        _state(relay, shard),
    )


def _state(relay: RelayHealth, shard: ShardHealth) -> str:
    if shard.fault:
        return "FAULT"
    if relay.paused:
        return "paused"
    return "running" if shard.process else "not running"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
