"""PostgreSQL dies, falls silent or turns read-only: relays with shards go on by themselves, every loop alive."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from counterfoil.embedded import EmbeddedPostgres
from infrastructure import metrics
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from tests.support.parcels import parcel_outbox, parcels_in
from tests.support.proxy import TcpProxy
from tests.support.read_only import becomes_read_only
from tests.support.relay_fleet import Topic, fleet, have_shards, owners, positions
from tests.support.relays import steps
from tests.support.stored_events import proxied
from tests.support.wait import eventually

KEYS = [f"p{number}" for number in range(12)]
SHARDS = 3
LEASE = 2.0
BACK_WITHIN = 30.0

Outage = Callable[[EmbeddedPostgres, TcpProxy], Iterator[None]]


@contextmanager
def killed(server: EmbeddedPostgres, _: TcpProxy) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def silent(_: EmbeddedPostgres, proxy: TcpProxy) -> Iterator[None]:
    proxy.blackhole()
    yield
    proxy.resume()


@contextmanager
def read_only(server: EmbeddedPostgres, _: TcpProxy) -> Iterator[None]:
    """As after a failover, where the sessions to the old primary stay open."""
    becomes_read_only(server.dsn(), True)
    yield
    becomes_read_only(server.dsn(), False)


def beats(name: str) -> dict[str, float]:
    loops = (name, f"{name}-hints", *(f"{name}/{shard}" for shard in range(SHARDS)))
    return {loop: metrics.LOOP_BEAT.labels(loop)._value.get() for loop in loops}


@pytest.mark.parametrize("outage", [killed, silent, read_only])
def test_all_shards_go_on_within_thirty_seconds_of_the_databases_return_with_every_loop_alive(
    own_postgres: EmbeddedPostgres, unique_name: Callable[[str], str], outage: Callable[..., Iterator[None]]
) -> None:
    name, direct = unique_name("parcels"), own_postgres.dsn()
    migrate(direct, STORE_MIGRATIONS)
    have_shards(direct, name, SHARDS)
    with proxied(direct) as (proxy, dsn), fleet(parcel_outbox("parcels", name), topic := Topic()) as relays:
        relays.start("one", dsn, relay_lease=LEASE)
        relays.start("two", dsn, relay_lease=LEASE)
        with parcels_in(direct) as parcels:
            parcels.move_all(KEYS, times=2)
        eventually(lambda: positions(direct, name) == [24] * SHARDS, within=30)

        with outage(own_postgres, proxy):  # type: ignore[attr-defined]
            eventually(lambda: none_publishes(name), within=30)
        returned = time.time()
        with parcels_in(direct) as parcels:
            for key in KEYS:  # the parcels of before are known to the store only
                parcels.versions[key] = 2
            parcels.move_all(KEYS, times=1)
            last = max(parcels.move(key) for key in KEYS)  # after a crash the server leaves positions out

        eventually(lambda: positions(direct, name) == [last] * SHARDS, within=BACK_WITHIN)
        eventually(lambda: None not in owners(direct, name), within=BACK_WITHIN)
        eventually(lambda: min(beats(name).values()) > returned, within=BACK_WITHIN)
    assert all(steps(topic.published, key) == [1, 2, 3, 4] for key in KEYS)


def none_publishes(name: str) -> bool:
    """Each shard of this process, and the processes themselves, have noticed."""
    found = {
        sample.labels["shard"]: sample.labels["state"]
        for metric in metrics.RELAY_STATE.collect()
        for sample in metric.samples
        if sample.labels["relay"] == name and sample.value == 1
    }
    return bool(found) and "relaying" not in found.values()
