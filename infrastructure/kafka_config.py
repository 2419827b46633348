"""The part of a Kafka client's configuration that says where the cluster is and how to reach it."""

import logging

from infrastructure.settings import Settings

logger = logging.getLogger(__name__)


def connection_config(settings: Settings) -> dict[str, str | int | float | bool]:
    """For producers, consumers and admin clients alike. Holds the password: never log it."""
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "security.protocol": settings.kafka_security_protocol,
        "client.id": "counterfoil",
        "reconnect.backoff.max.ms": 2_000,
        "log.connection.close": False,
    }
    if settings.kafka_ssl_ca_location is not None:
        config["ssl.ca.location"] = str(settings.kafka_ssl_ca_location)
    if settings.kafka_sasl_mechanism is not None:
        config["sasl.mechanism"] = settings.kafka_sasl_mechanism
        config["sasl.username"] = settings.kafka_sasl_username or ""
        password = settings.kafka_sasl_password
        config["sasl.password"] = password.get_secret_value() if password else ""
    if settings.kafka_security_protocol == "SASL_PLAINTEXT":
        logger.warning("the Kafka password travels without TLS, as the settings allow")
    return config
