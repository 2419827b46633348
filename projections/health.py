"""Whether a projection drains, judged from outside: by its group's place in Kafka, and by its quarantine."""

from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaException

from infrastructure.consumer_lag import GroupLag, group_lag
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from projections.base import Projection
from projections.effects.queue import failed_effects
from projections.quarantine import Count, count, most_of_one_key


@dataclass(frozen=True)
class ProjectionHealth:
    """lag: records not yet taken, None when Kafka did not say. waiting_seconds: age of the oldest of them, None
    when there is none. quarantined: records that wait for a decision. followers: those of them that wait only for
    an earlier one of their key.

    faults: what is wrong, in words, and what to do.
    """

    projection: str
    lag: int | None
    waiting_seconds: float | None
    quarantined: int
    faults: tuple[str, ...]
    followers: int = 0


def projection_health(settings: Settings, name: str, dsn: str, projection: Projection) -> ProjectionHealth:
    """name: the projection's. Raises psycopg.Error when its database does not answer."""
    with closing(connect(dsn, application_name="counterfoil status")) as connection:
        quarantined = count(connection, projection.consumer_name)
        of_one_key = most_of_one_key(connection, projection.consumer_name)
        refused = failed_effects(connection, projection.consumer_name)
    group = _group_lag(settings, projection)
    draining = group.fault if group else "Kafka did not answer"
    is_full = quarantined.total >= settings.quarantine_total or of_one_key >= settings.quarantine_per_key
    effects = "external effects were refused for good: see `counterfoil effects list`" if refused else None
    return ProjectionHealth(
        projection=name,
        lag=group.lag if group else None,
        waiting_seconds=group.waiting_seconds if group else None,
        quarantined=quarantined.total,
        faults=tuple(fault for fault in (draining, _decision(quarantined, is_full), effects) if fault),
        followers=quarantined.followers,
    )


def _decision(quarantined: Count, is_full: bool) -> str | None:
    if not quarantined.total:
        return None
    full = "the quarantine is full, so that partitions wait: " if is_full else ""
    followers = f", {quarantined.followers} of them behind others" if quarantined.followers else ""
    return f"{full}records in quarantine: {quarantined.total}{followers}. See `counterfoil quarantine list`"


def _group_lag(settings: Settings, projection: Projection) -> GroupLag | None:
    try:
        return group_lag(settings, projection.consumer_name, projection.topics)
    except KafkaException:
        return None
