"""A child process that never outlives us."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from counterfoil.embedded import guard

_LOG_TAIL_BYTES = 4_000


@dataclass(frozen=True)
class Account:
    """Who a child is to be, when we are root and it refuses root.

    in_namespace: True shows it as uid:gid inside a user namespace while its files remain ours; False
    changes to that account for real.
    """

    uid: int
    gid: int
    in_namespace: bool


class Child:
    """A started command; both its output streams go to the end of the file `log`.

    Guarantees: it is our direct child (`pid`), in a session of its own, so that a Ctrl-C in the terminal
    reaches us and not it; and it ends when we do, however we end. Then it gets the signal `at_our_death`,
    SIGKILL after `grace` seconds more, and the folder `remove` is deleted.

    Not guaranteed when a copy of us made by a bare fork (multiprocessing's "fork") lives on: it holds the
    other end too.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        account: Account | None = None,
        at_our_death: signal.Signals = signal.SIGKILL,
        grace: float = 5.0,
        remove: Path | None = None,
        hold_open: Sequence[int] = (),
    ) -> None:
        self.log = log
        lifeline, self._lifeline = os.pipe()
        plan = {
            "command": [str(part) for part in command],
            "lifeline": lifeline,
            "hold_open": list(hold_open),
            "account": asdict(account) if account else None,
            "at_our_death": int(at_our_death),
            "grace": grace,
            "remove": str(remove) if remove else None,
        }
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(  # noqa: S603 - the command is the caller's, no shell
                    [sys.executable, "-I", "-S", guard.__file__, json.dumps(plan)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                    pass_fds=(lifeline, *hold_open),
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        self.pid = self._process.pid
        self._released = False

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N when it died of signal N."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the child alone. Does nothing when it has ended."""
        self._process.send_signal(number)

    def wait(self, within: float) -> int:
        """Its return code. Raises subprocess.TimeoutExpired after `within` seconds; it runs on then."""
        returncode = self._process.wait(within)
        self._release()
        return returncode

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within: float = 10.0) -> int:
        """Ask it to end; kill it when it has not ended within so many seconds. Safe to repeat."""
        self.send(number)
        try:
            return self.wait(within)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        return self.wait(within=30.0)

    def log_tail(self) -> str:
        """The end of its output."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _release(self) -> None:
        """Tell the watcher that nothing is left to do; what the child leaves behind is ours again."""
        if self._released:
            return
        self._released = True
        with contextlib.suppress(BrokenPipeError):
            os.write(self._lifeline, guard.RELEASE)
        os.close(self._lifeline)
