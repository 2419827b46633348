"""What an inbox remembers, put there and looked at: ids of ours at a given time, ranges, horizons."""

import secrets
from collections.abc import Iterable
from datetime import timedelta

from confluent_kafka import Producer
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.migrate import migrate
from projections import inbox
from projections.inbox_ranges import now_ms

DAY_MS = 86_400_000


def id_at(ms: int) -> str:
    """An id of ours, of this Unix time."""
    return f"evt_{ms:012x}8{secrets.token_hex(2)[1:]}a{secrets.token_hex(8)[1:]}"


def days_ago(connection: Connection, days: float) -> int:
    """Unix time (ms), by the database's clock."""
    return now_ms(connection) - round(days * DAY_MS)


def remember(
    connection: Connection, consumer_name: str, ids: Iterable[str], days: float = 0.0, table: str = "processed_events"
) -> list[str]:
    """As applied so many days ago."""
    ids = list(ids)
    connection.execute(
        f"INSERT INTO {table} (consumer_name, event_id, processed_at)"
        " SELECT %s, unnest(%s::text[]), clock_timestamp() - %s",
        (consumer_name, ids, timedelta(days=days)),
    )
    return ids


def remember_from(connection: Connection, consumer_name: str, days: float, many: int = 3) -> list[str]:
    """Ids of ours of that time, applied at that time."""
    at = days_ago(connection, days)
    return remember(connection, consumer_name, [id_at(at + n) for n in range(many)], days)


def known(connection: Connection, consumer_name: str) -> set[str]:
    rows = connection.execute("SELECT event_id FROM processed_events WHERE consumer_name = %s", (consumer_name,))
    return {event_id for (event_id,) in rows}


def table_of(connection: Connection, event_id: str) -> str:
    row = connection.execute("SELECT tableoid::regclass::text FROM processed_events WHERE event_id = %s", (event_id,))
    [(table,)] = row.fetchall()
    return str(table)


def horizons(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT consumer_name, event_id FROM inbox_horizons").fetchall())


def make_old_range(connection: Connection, ms: int) -> str:
    """The range of that time, as it would have been made then. The name of its table."""
    digits = f"{ms >> 28:05x}"
    end = digits[:-1] + chr(ord(digits[-1]) + 1)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS processed_events_{digits} PARTITION OF processed_events"
        f" FOR VALUES FROM ('evt_{digits}') TO ('evt_{end}')"
    )
    return f"processed_events_{digits}"


def migrated(dsn: str) -> str:
    migrate(dsn, [inbox.MIGRATIONS])
    return dsn


def send_at(bootstrap: str, topic: str, contract: Contract, ms: int) -> None:
    """As if it had been published at that Unix time; returns when Kafka has it."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, contract.to_bytes(), contract.key.encode(), partition=0, timestamp=ms)
    assert producer.flush(20.0) == 0


def waits_for_a_lock(connection: Connection, pid: int) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return connection.execute(query, (pid,)).fetchone() == (True,)
