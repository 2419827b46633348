"""All settings, read once at the edge from the environment (prefix COUNTERFOIL_), validated, then frozen."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from domain.errors import CounterfoilError

PREFIX = "COUNTERFOIL_"

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(eq=False)
class SettingsError(CounterfoilError):
    """A setting is missing or wrong. names: the environment variables; problem: what is wrong, never a value."""

    names: tuple[str, ...]
    problem: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {self.problem}. Set it in the environment; docs/operations.md lists all."


class Settings(BaseSettings):
    """Times are seconds, sizes are counts, unless the name says otherwise. Secrets never show in a repr."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, hide_input_in_errors=True, extra="ignore")

    store_dsn: SecretStr | None = None
    """PostgreSQL database of the event store (libpq connection string or URL)."""

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"] = "PLAINTEXT"
    kafka_ssl_ca_location: Path | None = None
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: SecretStr | None = None
    kafka_allow_sasl_without_tls: bool = False

    topic_partitions: Count = 6
    """Partitions of a topic that the relay creates. More partitions later would break the order per key."""
    topic_replication_factor: Annotated[int, Field(ge=-1, le=100)] = -1
    """Replication factor of such a topic; -1 takes the broker's default."""
    topic_retention: Annotated[int, Field(ge=-1, le=3_155_760_000)] | None = None
    """Seconds for which such a topic keeps its records; -1 for ever, None takes the broker's default."""

    relay_delivery: Literal["at-least-once", "effectively-once"] = "at-least-once"
    """effectively-once: who reads only committed messages sees none twice, at the price of a transaction a batch."""
    relay_batch_size: Count = 1_000
    """Stored events read, mapped and published at once."""
    relay_batch_bytes: Annotated[int, Field(ge=1_000, le=1_000_000_000)] = 16_000_000
    """A batch ends when it is so large; one event may go beyond. Two batches of a shard are in memory."""
    relay_poll_busy: Seconds = 0.02
    """Longest wait for new events while there were some in the last second."""
    relay_poll_idle: Seconds = 0.5
    """Longest wait otherwise. A lost hint costs this much, never an event."""
    relay_lease: Annotated[float, Field(ge=1, le=300)] = 10.0
    """A relay that cannot renew its lease for this long is replaced."""
    publish_timeout: Seconds = 30.0
    """Longest wait for Kafka to acknowledge a batch before the relay starts over from its checkpoint."""

    consume_batch_size: Count = 500
    consume_wait: Seconds = 0.1
    """Longest wait for a first record; a batch is what is there by then, and waits for no more."""
    handler_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts at an event that fails for no known transient cause, before it is quarantined."""
    quarantine_per_key: Count = 10_000
    """Most entries of one key in a projection's quarantine; what comes then waits in Kafka."""
    quarantine_total: Count = 100_000
    """Most entries in all in a projection's quarantine; what comes then waits in Kafka."""
    session_timeout: Annotated[float, Field(ge=1, le=300)] = 10.0
    """A consumer that Kafka has not heard from for this long loses its partitions."""
    group_instance_id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Static membership: the member of this name keeps its partitions over a restart within `session_timeout`."""
    group_protocol: Literal["classic", "consumer"] = "classic"
    """consumer: the group protocol of KIP-848, in which the broker assigns; it needs Kafka 4.0, and has the broker's
    session time-out instead of ours."""

    stop_grace: Seconds = 10.0
    """A process that was told to stop ends within this time."""

    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port on 127.0.0.1 for Prometheus metrics; 0 serves none."""
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @classmethod
    def load(cls) -> Self:
        """Raises SettingsError, which names the variables and never shows a value."""
        try:
            return cls()
        except ValidationError as error:
            names = tuple(PREFIX + str(each["loc"][0]).upper() for each in error.errors() if each["loc"])
            problem = "; ".join(each["msg"] for each in error.errors(include_input=False))
            raise SettingsError(names or (PREFIX + "*",), problem) from None

    @field_validator("topic_retention")
    @classmethod
    def _keep_records_for_some_time(cls, seconds: int | None) -> int | None:
        if seconds == 0:
            raise ValueError("records must be kept for some time; -1 keeps them for ever")
        return seconds

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> Self:
        if self.kafka_security_protocol == "SASL_PLAINTEXT" and not self.kafka_allow_sasl_without_tls:
            raise ValueError(
                "SASL_PLAINTEXT would send the password in the clear; "
                f"use SASL_SSL, or say {PREFIX}KAFKA_ALLOW_SASL_WITHOUT_TLS=true"
            )
        return self

    def required_store_dsn(self) -> str:
        if self.store_dsn is None:
            raise SettingsError((PREFIX + "STORE_DSN",), "no event store database is given")
        return self.store_dsn.get_secret_value()


def projection_dsn(projection: str) -> str:
    """The database of a projection by its folder's name: `inventory` has COUNTERFOIL_INVENTORY_DSN.

    Raises SettingsError when it is not set.
    """
    name = f"{PREFIX}{projection.upper()}_DSN"
    dsn = os.environ.get(name)
    if not dsn:
        raise SettingsError((name,), f"no database is given for the projection {projection!r}")
    return dsn
