"""The command line. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 unhealthy, 130 interrupted."""

import os
import sys


def main() -> None:
    """What is imported takes its time, and Ctrl-C may come in it: so the import stands within."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        from counterfoil.app import run

        run()
    finally:
        _flush()


def _flush() -> None:
    """Whoever read our output may have left: nobody is to be told of that, Python at its end included."""
    try:
        if sys.stdout:  # there is none in a process that was started with it closed
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
