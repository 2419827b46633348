"""Our programs as real processes: started, watched through their output, signalled, never left over."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from counterfoil.embedded.child import Account, Child
from tests.support.wait import eventually

REPOSITORY = Path(__file__).parents[2]


def state_of(pid: int) -> str:
    """The first letter of what `ps` says of it, on Linux and macOS: T is stopped, Z ended, and none no process."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]


def is_gone(pid: int) -> bool:
    """Ended, whether or not its parent has taken note."""
    return state_of(pid) in ("", "Z")


class Program(Child):
    """A started program. What it writes to stdout and stderr is in the file `log`."""

    def output(self) -> str:
        """All it has written so far."""
        return self.log.read_text(errors="replace")

    def wait_for_line(self, pattern: str, within: float = 15.0) -> re.Match[str]:
        """The first match of the regular expression in its output. Fails the test when it ends without."""

        def found() -> re.Match[str] | None:
            ended = not self.running
            match = re.search(pattern, self.output(), re.MULTILINE)
            if match is None and ended:
                pytest.fail(f"ended ({self.returncode}) without a line {pattern!r}:\n{self.log_tail()}")
            return match

        match = eventually(found, within)
        assert match is not None
        return match

    def interrupt(self, within: float = 15.0) -> int:
        """Ctrl-C: SIGINT to it and to its children. Its return code."""
        os.killpg(self.pid, signal.SIGINT)
        return self.wait(within)


class Programs:
    """Starts programs, and ends all of them at the latest with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self._started:
            program.kill()
            print(f"--- {program.log.name} (pid {program.pid}, {program.returncode})\n{program.log_tail()}")

    def counterfoil(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        """`counterfoil ARGUMENTS`, for example `programs.counterfoil("relay", "domain.orders", env=...)`."""
        return self.python("-m", "counterfoil", *arguments, env=env)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        """Python in the root of the repository, so that `-m tests...` works."""
        return self.run([sys.executable, *arguments], env=env)

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, account: Account | None = None
    ) -> Program:
        """Any command, as somebody else if told so. `env` is added to ours, of which no COUNTERFOIL_
        variable is handed on: a test says itself which servers it means."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
        program = Program(
            command,
            log=self._folder / f"program-{len(self._started) + 1}.log",
            env={**ours, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=REPOSITORY,
            account=account,
        )
        self._started.append(program)
        return program
