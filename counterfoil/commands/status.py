"""Does everything drain? Store, relays and projections at a glance."""

from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from counterfoil.output import complain, print_json, print_table
from infrastructure.consumer_lag import group_lag
from infrastructure.health import RelayHealth, relay_health
from infrastructure.postgres import connect
from infrastructure.settings import Settings, SettingsError
from projections.base import Projection
from projections.loading import all_projections
from projections.quarantine import count

NAME = "counterfoil status"


@dataclass(frozen=True)
class ProjectionHealth:
    """lag: records not yet taken, None when Kafka did not say. quarantined: records that wait for a decision."""

    projection: str
    lag: int | None
    quarantined: int


def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show how far relays and projections are. Exit code 3 when something does not drain or needs a decision."""
    settings = Settings.load()
    relays, projections = examine(settings)
    if as_json:
        print_json({"relays": [asdict(each) for each in relays], "projections": [asdict(each) for each in projections]})
    else:
        _print(relays, projections)
    faults = ["no relay has ever run on this store: start one"] if settings.store_dsn and not relays else []
    faults += [f"relay {each.relay}: {each.fault}" for each in relays if each.fault] + [
        f"projection {each.projection}: " + ("Kafka did not answer" if each.lag is None else "events are in quarantine")
        for each in projections
        if each.lag is None or each.quarantined
    ]
    for fault in faults:
        complain(fault)
    if faults:
        raise typer.Exit(3)


def examine(settings: Settings) -> tuple[list[RelayHealth], list[ProjectionHealth]]:
    relays: list[RelayHealth] = []
    projections: list[ProjectionHealth] = []
    if settings.store_dsn is not None:
        with closing(connect(settings.required_store_dsn(), application_name=NAME)) as store:
            relays = relay_health(store)
    for loaded in all_projections():
        with suppress(SettingsError):
            projections.append(_examine_projection(settings, loaded.name, loaded.dsn(), loaded.projection))
    return relays, projections


def _examine_projection(settings: Settings, name: str, dsn: str, projection: Projection) -> ProjectionHealth:
    with closing(connect(dsn, application_name=NAME)) as connection:
        quarantined = count(connection, projection.consumer_name)
    try:
        lag = sum(each.lag for each in group_lag(settings, projection.consumer_name, projection.topics))
    except KafkaException:
        return ProjectionHealth(name, None, quarantined)
    return ProjectionHealth(name, lag, quarantined)


def _print(relays: list[RelayHealth], projections: list[ProjectionHealth]) -> None:
    print_table(
        "Relays",
        ("relay", "position", "store's highest", "oldest waiting", "last beat", "state"),
        [
            (
                each.relay,
                each.position,
                each.highest,
                _seconds(each.waiting_seconds),
                _seconds(each.beat_age),
                _state(each),
            )
            for each in relays
        ],
    )
    print_table(
        "Projections",
        ("projection", "records behind", "in quarantine"),
        [(each.projection, "unknown" if each.lag is None else each.lag, each.quarantined) for each in projections],
    )


def _state(relay: RelayHealth) -> str:
    return "FAULT" if relay.fault else "running" if relay.leased else "not running"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
