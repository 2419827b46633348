"""Become a command, with a watcher at its side that ends it when the process that started us is gone.

Run by `child.py` as `python -I -S guard.py PLAN`; standard library only. This process turns into the
command by exec, so the command is a direct child of the starter, under the process id the starter knows.

Why a pipe and a watcher, not PR_SET_PDEATHSIG: that signal is Linux only, is cleared when credentials
change (setuid, user namespaces), and is sent when the forking *thread* ends, not the process. The starter
alone holds the write end of the pipe; the kernel closes it however the starter ends, kill -9 included.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

CLONE_NEWUSER = 0x10000000
RELEASE = b"."


def main() -> None:
    plan = json.loads(sys.argv[1])
    _take_account(plan["account"])
    command = os.getpid()
    if os.fork() == 0:
        _watch(command, plan)
        os._exit(0)
    os.set_inheritable(plan["lifeline"], False)
    _reset_signals()
    os.execvp(plan["command"][0], plan["command"])  # noqa: S606 - no shell is what we want


def _take_account(account: dict[str, int] | None) -> None:
    """Leave root behind, for a server that refuses to run as root."""
    if account is None:
        return
    if account["in_namespace"]:
        _enter_user_namespace(account["uid"], account["gid"])
    else:
        os.setgroups([])
        os.setgid(account["gid"])
        os.setuid(account["uid"])


def _enter_user_namespace(uid: int, gid: int) -> None:
    """Show ourselves as `uid` without its rights: files still belong to who we are outside."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace can be made here")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def _reset_signals() -> None:
    """Python ignores SIGPIPE, a background shell SIGINT: exec would hand both on to the command."""
    for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _watch(command: int, plan: dict[str, Any]) -> None:
    for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # we share the command's process group and outlive it
    for held in plan["hold_open"]:
        os.close(held)  # for the command to hold, not for us
    if os.read(plan["lifeline"], 1) == RELEASE:
        return
    _end(command, plan["at_our_death"], plan["grace"])
    if plan["remove"] is not None:
        shutil.rmtree(plan["remove"], ignore_errors=True)


def _end(command: int, first: int, grace: float) -> None:
    """Signal its process group; kill it when it is still there after `grace` seconds."""
    os.setpgid(0, 0)  # out of that group ourselves
    for number in (first, signal.SIGKILL):
        if os.getppid() != command:
            return  # it has ended; its id may be anybody's now
        os.killpg(command, number)
        deadline = time.monotonic() + grace
        while os.getppid() == command and time.monotonic() < deadline:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
