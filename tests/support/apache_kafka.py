"""A real Apache Kafka broker of the tests' own: one KRaft node, to be stopped, killed and restarted."""

import base64
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from counterfoil.embedded.child import Child
from counterfoil.embedded.errors import ServiceFailed
from counterfoil.embedded.ports import free_port
from tests.support.kafka_programs import KafkaPrograms

_NAME = "Apache Kafka"
_HOST = "127.0.0.1"
_JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LEAVES_NOTHING = "-XX:-UsePerfData"
"""Else Java keeps a file for each of its processes in the system's temporary folder."""
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
# broker.session.timeout.ms: after a kill -9 the node waits so long before it takes itself back.
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
"""


class RealKafka:
    """One broker on a free port of 127.0.0.1; it ends with us, however we end.

    Its log and its port stay the same over `kill()`, `start()` and `restart()`; `close()` deletes all.
    """

    def __init__(self, programs: KafkaPrograms) -> None:
        self._programs = programs
        self._port, self._controller_port = free_port(_HOST), free_port(_HOST)
        self._folder: Path | None = None
        self._server: Child | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """host:port, for `bootstrap.servers`."""
        return f"{_HOST}:{self._port}"

    @property
    def folder(self) -> Path | None:
        """All that it writes, wherever: deleted with `close()`."""
        return self._folder

    @property
    def pid(self) -> int | None:
        """Process id of the broker, our direct child."""
        return self._server.pid if self._server else None

    def start(self, within: float = 60.0) -> None:
        """Start, and return once it answers. Raises ServiceFailed."""
        deadline = time.monotonic() + within
        folder = self._folder or self._format()
        self._server = Child(
            self._java(folder, "kafka.Kafka", str(folder / "server.properties")),
            log=folder / "server.log",
            cwd=folder,
            remove=folder,
        )
        try:
            self._wait_until_it_answers(self._server, deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """An orderly shutdown; the log stays for a `start()`."""
        if self._server is not None:
            self._server.stop(within=30.0)
            self._server = None

    def kill(self) -> None:
        """kill -9 as a crash would do it; the log stays for a `start()`."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def restart(self) -> None:
        """Stop, unless it is dead already, and start with the same log on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """The end: no need for an orderly one, its log is deleted."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _java(self, folder: Path, main_class: str, *arguments: str) -> list[str]:
        # It unpacks libraries there, and does not remove them when it is killed.
        temporary = f"-Djava.io.tmpdir={folder}"
        options = (*_JAVA_OPTIONS, *_LOG_OPTIONS, _LEAVES_NOTHING, temporary, "-cp", f"{self._programs.jars}/*")
        return [self._programs.java, *options, main_class, *arguments]

    def _format(self) -> Path:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="counterfoil-kafka-"))
        properties = folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(host=_HOST, port=self._port, controller_port=self._controller_port, data=folder / "data")
        )
        cluster_id = base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode().rstrip("=")
        formatting = Child(
            self._java(folder, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)),
            log=folder / "format.log",
            remove=folder,
        )
        try:
            returncode = formatting.wait(within=60.0)
        except subprocess.TimeoutExpired:
            returncode = formatting.kill()
        if returncode != 0:
            raise ServiceFailed(_NAME, "could not format its storage", formatting.log_tail())
        return folder

    def _wait_until_it_answers(self, server: Child, deadline: float) -> None:
        # Without a logger the client writes every refused connection to stderr.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0})
        while True:
            try:
                if admin.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                if not server.running:
                    raise ServiceFailed(_NAME, "ended while it started", server.log_tail()) from None
            if time.monotonic() > deadline:
                raise ServiceFailed(_NAME, "does not answer", server.log_tail())
