"""Servers, a proxy before PostgreSQL, and fleets of processes, all of them there to be broken."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from time import monotonic

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from counterfoil.embedded import EmbeddedPostgres
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import connect
from projections.inventory import MIGRATIONS
from projections.inventory.queries import set_stock
from tests.chaos import parcels
from tests.chaos.intruder import TOPICS
from tests.chaos.plan import Accident
from tests.chaos.writer import SKUS
from tests.support.apache_kafka import RealKafka
from tests.support.kafka import create_topic
from tests.support.kafka_programs import KafkaPrograms
from tests.support.processes import Program, Programs
from tests.support.proxy import TcpProxy

GRACE = 10.0
"""Seconds within which a program ends that was told to, as the settings have it."""
SLOWNESS = 20.0
"""Seconds that a busy machine may add to it."""
GROWN_UP = 12.0
"""Seconds after its start when a program is sure to listen to signals, on a busy machine too."""
PLENTY = 10**9
"""So much stock that no order is ever rejected: then the end does not depend on who came first."""

PARTITIONS = 3

Start = Callable[[], Program]


@dataclass
class Fleet:
    """Programs of one kind, each of them replaced when it ends."""

    start: list[Start]
    members: list[tuple[Program, float]] = field(default_factory=list)
    stopped: int = 0

    def tend(self) -> None:
        """As whoever runs them in production would: what has ended is started again."""
        for number, start in enumerate(self.start):
            if number == len(self.members):
                self.members.append((start(), monotonic()))
            elif not self.members[number][0].running:
                self.members[number] = start(), monotonic()

    def kill(self, member: int) -> None:
        self.members[member % len(self.members)][0].kill()
        self.tend()

    def freeze(self, member: int, seconds: float) -> None:
        """What was frozen while it started is as young afterwards as it was before."""
        number = member % len(self.members)
        program, _ = self.members[number]
        program.send(signal.SIGSTOP)
        self.members[number] = program, monotonic() + seconds

    def thaw(self) -> None:
        for program, _ in self.members:
            program.send(signal.SIGCONT)

    def stop(self) -> None:
        """Of the eldest nobody can say that it was not ready to be told."""
        program, born = min(self.members, key=lambda each: each[1])
        if monotonic() - born > GROWN_UP and program.running:
            ends_well(program)
            self.stopped += 1
        self.tend()


def ends_well(program: Program) -> None:
    """Of one that does not, its log shows at the end where each of its threads was."""
    program.send(signal.SIGCONT)
    program.send(signal.SIGTERM)
    try:
        returncode = program.wait(GRACE + SLOWNESS)
    except TimeoutExpired:
        program.send(signal.SIGABRT)
        program.wait(SLOWNESS)
        raise AssertionError(f"told to stop, did not end:\n{program.log_tail()}") from None
    assert returncode == 0, f"told to stop, ended with {returncode}:\n{program.log_tail()}"


@dataclass
class House:
    """store_dsn, parcels_dsn and inventory_dsn lead to PostgreSQL directly: for the account, not for the programs."""

    postgres: EmbeddedPostgres
    kafka: RealKafka
    proxy: TcpProxy
    store_dsn: str
    parcels_dsn: str
    inventory_dsn: str
    closed: Path
    """Once this file is there, nothing more is written."""
    fleets: dict[str, Fleet]

    def tend(self) -> None:
        for fleet in self.fleets.values():
            fleet.tend()

    def suffer(self, accident: Accident) -> Callable[[], None] | None:
        """It happens; returns what ends it, for those that last."""
        match accident.whom, accident.what:
            case "connections", "cut":
                self.proxy.cut()
                return self.proxy.resume
            case "connections", "silence":
                self.proxy.blackhole()
                return self.proxy.resume
            case "postgres", "kill":
                self.postgres.kill()
                self.postgres.start()
            case "postgres", "restart":
                self.postgres.restart()
            case "kafka", "kill":
                self.kafka.kill()
                self.kafka.start()
            case "kafka", "restart":
                self.kafka.restart()
            case whom, "kill":
                self.fleets[whom].kill(accident.member)
            case whom, "stop":
                self.fleets[whom].stop()
            case whom, "freeze":
                self.fleets[whom].freeze(accident.member, accident.lasts)
                return self.fleets[whom].thaw
        return None

    def recover(self) -> None:
        """All that lasts is over; from now on everything must come right by itself."""
        self.proxy.resume()
        for fleet in self.fleets.values():
            fleet.thaw()

    def stop_writing(self) -> None:
        """Whoever is under way ends what he has begun; programs that are started later write nothing."""
        self.closed.touch()


@contextmanager
def built(seed: int, programs: KafkaPrograms, folder: Path) -> Iterator[House]:
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres())
        kafka = stack.enter_context(RealKafka(programs))
        where = conninfo_to_dict(postgres.dsn())
        proxy = stack.enter_context(TcpProxy(str(where["host"]), int(str(where["port"]))))
        dsns = [postgres.create_database(name) for name in ("store", "parcels", "inventory")]
        store, parcels_store, inventory = dsns
        migrate(store, STORE_MIGRATIONS)
        migrate(parcels_store, STORE_MIGRATIONS)
        migrate(inventory, MIGRATIONS)
        with connect(inventory, application_name="chaos") as connection:
            connection.execute(parcels.CREATE)
            for sku in SKUS:
                set_stock(connection, sku, PLENTY)
        for topic in TOPICS:
            create_topic(kafka.bootstrap, topic, PARTITIONS)
        started = stack.enter_context(Programs(folder))
        through = [make_conninfo(dsn, port=proxy.port) for dsn in dsns]
        closed = folder / "closed"
        fleets = _fleets(started, seed, kafka.bootstrap, closed, *through)
        house = House(postgres, kafka, proxy, *dsns, closed, fleets)
        house.tend()
        yield house


def _fleets(
    programs: Programs, seed: int, bootstrap: str, closed: Path, store: str, parcels_store: str, inventory: str
) -> dict[str, Fleet]:
    env = {
        "COUNTERFOIL_STORE_DSN": store,
        "COUNTERFOIL_INVENTORY_DSN": inventory,
        "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "COUNTERFOIL_TOPIC_PARTITIONS": str(PARTITIONS),
        "COUNTERFOIL_RELAY_LEASE": "3",
        "COUNTERFOIL_RELAY_BATCH_SIZE": "50",
        "COUNTERFOIL_CONSUME_BATCH_SIZE": "50",
        "COUNTERFOIL_SESSION_TIMEOUT": "6",
        "CHAOS_CLOSED": str(closed),
        "PYTHONFAULTHANDLER": "1",
    }
    of_parcels = env | {"COUNTERFOIL_STORE_DSN": parcels_store}

    def relay() -> Program:
        return programs.counterfoil("relay", "domain.orders", env=env)

    def runner() -> Program:
        return programs.counterfoil("project", "projections.inventory", env=env)

    def writer() -> Program:
        return programs.python("-m", "tests.chaos.writer", str(seed), "ord", env=env)

    def moving(name: str) -> Start:
        return lambda: programs.python("-m", "tests.chaos.parcels", name, env=of_parcels)

    return {
        "relay": Fleet([relay, relay]),
        "runner": Fleet([runner, runner]),
        "writer": Fleet([writer]),
        "parcels": Fleet([moving("a"), moving("b")]),
    }
