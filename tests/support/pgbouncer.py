"""A real pgbouncer in transaction mode in front of a PostgreSQL server."""

import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from counterfoil.embedded.accounts import account_for_a_server, hand_over
from counterfoil.embedded.child import Child
from counterfoil.embedded.errors import ServiceFailed
from counterfoil.embedded.ports import free_port

POOL = 3
_NAME = "pgbouncer"
_HOST = "127.0.0.1"
_PATH = "/usr/sbin:/usr/local/sbin"
"""Where Debian puts it, which is not in everybody's PATH."""

_SETTINGS = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = {listen}
listen_port = {listen_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 200
ignore_startup_parameters = options
"""


def _program() -> str | None:
    return shutil.which(_NAME) or shutil.which(_NAME, path=_PATH)


def why_there_is_no_pgbouncer() -> str | None:
    return None if _program() else "install it with `apt-get install pgbouncer`"


class PgBouncer:
    """Ends with us, however we end. `through(dsn)` is the way through it to the database of that DSN."""

    def __init__(self, server_dsn: str) -> None:
        self._server = conninfo_to_dict(server_dsn)
        self._server_dsn = server_dsn
        self._port = free_port(_HOST)
        self._folder = Path(tempfile.mkdtemp(prefix="counterfoil-pgbouncer-"))
        self._child: Child | None = None

    def __enter__(self) -> Self:
        program = _program()
        assert program is not None
        users, settings = self._folder / "users.txt", self._folder / "pgbouncer.ini"
        users.touch(mode=0o600)
        users.write_text(f'"{self._server["user"]}" "{self._server.get("password") or ""}"\n')
        settings.write_text(
            _SETTINGS.format(
                host=self._server["host"],
                port=self._server.get("port") or 5432,
                listen=_HOST,
                listen_port=self._port,
                users=users,
                pool=POOL,
            )
        )
        account = account_for_a_server()
        hand_over(self._folder, account)
        self._child = Child(
            [program, settings], log=self._folder / "log", cwd=self._folder, account=account, remove=self._folder
        )
        try:
            self._wait_until_it_answers(self._child)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def through(self, dsn: str) -> str:
        return make_conninfo(dsn, host=_HOST, port=self._port)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _close(self) -> None:
        if self._child is not None:
            self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_it_answers(self, child: Child, within: float = 15.0) -> None:
        deadline = time.monotonic() + within
        while True:
            try:
                psycopg.connect(self.through(self._server_dsn), connect_timeout=2).close()
            except psycopg.OperationalError:
                if not child.running or time.monotonic() > deadline:
                    raise ServiceFailed(_NAME, "does not answer", child.log_tail()) from None
                time.sleep(0.02)
            else:
                return
