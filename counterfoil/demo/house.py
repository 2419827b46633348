"""Everything up and running: PostgreSQL, a broker, relays and projections, each a process of its own."""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from counterfoil.embedded import Child, EmbeddedBroker, EmbeddedPostgres
from domain.errors import CounterfoilError
from infrastructure.checkpoint import read_checkpoint
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.postgres import connect
from infrastructure.settings import Settings
from projections import inventory, order_summary

RELAY = ("relay", "domain.orders")
RUNNER = ("project", "projections.inventory")
SUMMARY = ("project", "projections.order_summary")


@dataclass(eq=False)
class DemoFailed(CounterfoilError):
    """A process ended by itself, or events did not arrive in time. log: the end of what the processes wrote."""

    what: str
    log: str

    def __str__(self) -> str:
        return f"{self.what}. The end of the log:\n{self.log}"


@dataclass
class House:
    """env: where everything is. logs: a folder that is gone when we are, however we end. processes: those that
    should be running, by command and number."""

    env: Mapping[str, str]
    logs: Path
    services: Mapping[str, EmbeddedPostgres | EmbeddedBroker]
    processes: dict[str, Child] = field(default_factory=dict)
    _started: int = 0

    @property
    def store_dsn(self) -> str:
        return self.env["COUNTERFOIL_STORE_DSN"]

    @property
    def inventory_dsn(self) -> str:
        return self.env["COUNTERFOIL_INVENTORY_DSN"]

    @property
    def settings(self) -> Settings:
        return Settings(kafka_bootstrap_servers=self.env["COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS"])

    def start(self, command: tuple[str, ...]) -> None:
        self._started += 1
        name = f"{command[0]}-{self._started}"
        arguments = [sys.executable, "-m", "counterfoil", *command]
        log = self.logs / f"{name}.log"
        self.processes[name] = Child(arguments, log=log, env=os.environ | self.env, remove=self.logs)

    def kill(self, name: str) -> None:
        """kill -9, without a word to anyone."""
        self.processes.pop(name).send(signal.SIGKILL)

    def leading_relay(self) -> str | None:
        """The process that has the relay's lease now."""
        with closing(connect(self.store_dsn, application_name="counterfoil demo")) as store:
            checkpoint = read_checkpoint(store, RELAY[1])
        owner = checkpoint.owner.split(":")[1] if checkpoint and checkpoint.owner else ""
        return next((name for name, process in self.processes.items() if str(process.pid) == owner), None)

    def a_runner(self) -> str:
        """Of the inventory; these were started before the summary's."""
        return next(name for name in self.processes if name.startswith(RUNNER[0]))

    def check(self) -> None:
        """Raises DemoFailed when a process or a service has ended by itself."""
        for name, service in self.services.items():
            if not service.running:
                raise DemoFailed(f"{name} has ended", self.log_tails())
        for name, process in self.processes.items():
            if not process.running:
                raise DemoFailed(f"{name} has ended with code {process.returncode}", process.log_tail())

    def log_tails(self) -> str:
        return "\n".join(f"--- {name}\n{process.log_tail()}" for name, process in self.processes.items())

    def link_env(self, path: Path) -> None:
        """A link to a file to source in another shell. The file goes with us; it holds the embedded services'
        passwords and is for its owner only. Raises FileExistsError when another demo is up in the same folder."""
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            raise FileExistsError(f"{path} belongs to a demo that is still up: stop that one, or use another folder")
        path.unlink(missing_ok=True)  # a link that a killed demo left behind leads nowhere
        file = self.logs / "env"
        file.touch(mode=0o600)
        file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items()))
        path.symlink_to(file)

    def stop(self) -> None:
        """All are told first, then each is waited for."""
        for process in self.processes.values():
            process.send(signal.SIGTERM)
        for process in self.processes.values():
            process.stop()


@contextmanager
def open_house() -> Iterator[House]:
    """Two relays, of which one publishes and the other stands by, two inventory runners, and one of the summary."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-demo-")))
        postgres = stack.enter_context(EmbeddedPostgres())
        broker = stack.enter_context(EmbeddedBroker())
        env = {
            "COUNTERFOIL_STORE_DSN": postgres.create_database("orders"),
            "COUNTERFOIL_INVENTORY_DSN": postgres.create_database("inventory"),
            "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "COUNTERFOIL_TOPIC_REPLICATION_FACTOR": "1",
            "COUNTERFOIL_SESSION_TIMEOUT": "6",
            "COUNTERFOIL_RELAY_LEASE": "3",
        }
        migrate(env["COUNTERFOIL_STORE_DSN"], [*STORE_MIGRATIONS, *order_summary.MIGRATIONS])
        migrate(env["COUNTERFOIL_INVENTORY_DSN"], inventory.MIGRATIONS)
        house = House(env, logs, {"PostgreSQL": postgres, "the broker": broker})
        stack.callback(house.stop)
        for command in (RELAY, RELAY, RUNNER, RUNNER, SUMMARY):
            house.start(command)
        yield house
