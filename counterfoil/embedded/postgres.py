"""A PostgreSQL server of our own: no package to install, no service to set up, nothing left over."""

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from counterfoil.embedded.accounts import account_for_a_server, hand_over
from counterfoil.embedded.child import Account, Child
from counterfoil.embedded.errors import ServiceFailed
from counterfoil.embedded.ports import free_port
from counterfoil.embedded.postgres_binaries import postgres_binaries

_NAME = "PostgreSQL"
_USER = "postgres"
_HOST = "127.0.0.1"
_SETTINGS = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    # In the data folder, not in /dev/shm: that is small in containers, and not cleaned up after a kill -9.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgres:
    """One PostgreSQL server on a free port of 127.0.0.1, password protected, with fsync on.

    Without `data_dir` its data live in a temporary folder that is deleted by `stop()`, and also when we
    are killed. With one they stay there, and a later start finds them, after a kill -9 too; a second
    server on the same folder is refused.
    `run_as`: the account to change to when we are root; by default one is found (accounts.py).

    The port, and with it `dsn()`, stays the same over `kill()`, `start()` and `restart()`.
    """

    def __init__(self, data_dir: Path | None = None, *, run_as: str | None = None) -> None:
        self._data_dir = data_dir
        self._run_as = run_as
        self._port = free_port(_HOST)
        self._password = ""
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
    def pid(self) -> int | None:
        """Process id of the postmaster, our direct child."""
        return self._server.pid if self._server else None

    def dsn(self, database: str = "postgres") -> str:
        """Connection string of the superuser. It holds the password: not for logs."""
        return make_conninfo(host=_HOST, port=self._port, user=_USER, password=self._password, dbname=database)

    def create_database(self, name: str) -> str:
        """Create an empty database; returns its connection string."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.running

    def start(self, within: float = 60.0) -> None:
        """Start, and return once it answers. Raises ServiceBinariesMissing or ServiceFailed."""
        deadline = time.monotonic() + within
        try:
            folder = self._open_folder()
            lock = _lock(folder, deadline)
            try:
                account = account_for_a_server(self._run_as)
                hand_over(folder, account)
                programs = postgres_binaries(account, folder / "programs")
                self._password = self._ensure_cluster(folder, programs, account, deadline)
                self._server = self._launch(folder, programs, account, lock)
            finally:
                os.close(lock)
            self._wait_until_it_answers(self._server, deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Fast shutdown: clients are disconnected, everything is written out. Safe to repeat."""
        self._shut_down()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._folder = None

    def kill(self) -> None:
        """kill -9 as a crash would do it. The data stay for a `start()`."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """Shut down, unless it is dead already, and start with the same data on the same port."""
        self._shut_down()
        self.start()

    def _shut_down(self) -> None:
        if self._server is not None:
            self._server.stop(signal.SIGINT, within=20.0)
            self._server = None

    @property
    def _temporary(self) -> Path | None:
        """The folder, if it is ours to delete."""
        return self._folder if self._data_dir is None else None

    def _open_folder(self) -> Path:
        if self._folder is None:
            if self._data_dir is None:
                self._folder = Path(tempfile.mkdtemp(prefix="counterfoil-postgres-"))
            else:
                self._folder = self._data_dir.absolute()
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _refuse_what_is_not_ours(self._folder)
        return self._folder

    def _ensure_cluster(self, folder: Path, programs: Path, account: Account | None, deadline: float) -> str:
        """Create the cluster unless it is there; returns the superuser's password.

        It is created aside and renamed when complete, so that a half-made one is never used.
        """
        password_file, log = folder / "password", folder / "initdb.log"
        if (folder / "cluster").exists():
            return password_file.read_text()
        new = folder / "cluster.new"
        shutil.rmtree(new, ignore_errors=True)
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_urlsafe(24))
        hand_over(folder, account)
        initdb = Child(
            [
                *(programs / "initdb", "-D", new, "-U", _USER, "-E", "UTF8", "--locale=C"),
                *("--auth=scram-sha-256", f"--pwfile={password_file}"),
            ],
            log=log,
            env=_environment(),
            cwd=folder,
            account=account,
            remove=self._temporary,
        )
        try:
            returncode = initdb.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            returncode = initdb.kill()
        except BaseException:
            initdb.kill()
            raise
        if returncode != 0:
            raise ServiceFailed(_NAME, f"could not create its data folder (initdb: {returncode})", initdb.log_tail())
        new.rename(folder / "cluster")
        return password_file.read_text()

    def _launch(self, folder: Path, programs: Path, account: Account | None, lock: int) -> Child:
        # Whoever wrote it is dead, or we would not have the lock. The server itself only looks whether
        # that process id is in use, and after a reboot or in a container it may be, by anybody.
        (folder / "cluster" / "postmaster.pid").unlink(missing_ok=True)
        settings = [f"-c{name}={value}" for name, value in {**_SETTINGS, "port": str(self._port)}.items()]
        return Child(
            [programs / "postgres", "-D", folder / "cluster", *settings],
            log=folder / "server.log",
            env=_environment(),
            cwd=folder,
            account=account,
            at_our_death=signal.SIGQUIT,  # it then ends its own children, which have left its process group
            remove=self._temporary,
            hold_open=[lock],
        )

    def _wait_until_it_answers(self, server: Child, deadline: float) -> None:
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if not server.running:
                    raise ServiceFailed(_NAME, "ended while it started", server.log_tail()) from None
                if time.monotonic() > deadline:
                    raise ServiceFailed(_NAME, "does not answer", server.log_tail()) from error
                time.sleep(0.02)
            else:
                return


def _refuse_what_is_not_ours(folder: Path) -> None:
    """A folder given by mistake keeps its files and their owners. Raises ServiceFailed."""
    if any(folder.iterdir()) and not (folder / "lock").exists():
        raise ServiceFailed(_NAME, f"puts its data into an empty folder or one of its own, not into {folder}", "")


def _lock(folder: Path, deadline: float) -> int:
    """One server to a folder. The server and all its children inherit the lock and so hold it together.

    It is free only once the last of them is gone: a backend that outlives a killed postmaster still
    writes to the data. Raises ServiceFailed when it is not free by the deadline.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise ServiceFailed(_NAME, f"is running already on {folder}", "") from None
            time.sleep(0.05)
        else:
            return lock


def _environment() -> dict[str, str]:
    """Without the PG... variables, which would change what these programs do."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
