"""Who PostgreSQL runs as. It refuses root, so root has to be somebody else for it."""

import os
import pwd
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from counterfoil.embedded.child import Account, Child

_ACCOUNTS_TO_CHANGE_TO = ("postgres", "nobody")


def account_for_a_server(name: str | None = None) -> Account | None:
    """None (stay who we are) unless we are root; `name` asks root for this account.

    Without a name: a user namespace where one can be made (it needs no chown, and works when our
    virtual environment is below a closed /root), else the account postgres, else nobody.
    """
    if os.geteuid() != 0:
        return None
    if name is not None:
        return _change_to(name)
    return _in_a_namespace() or next(filter(None, map(_known, _ACCOUNTS_TO_CHANGE_TO)), None)


def hand_over(folder: Path, account: Account | None) -> None:
    """Give a folder and all in it to the account, where files do not stay ours."""
    if account is None or account.in_namespace:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def may_run(program: Path, account: Account | None) -> bool:
    """Whether the account gets at the program: it may be in a folder closed to others, such as /root."""
    if account is None or account.in_namespace:
        return True
    return (
        subprocess.run(  # noqa: S603
            ["/usr/bin/test", "-x", program], user=account.uid, group=account.gid, extra_groups=[], check=False
        ).returncode
        == 0
    )


def _known(name: str) -> Account | None:
    try:
        return _change_to(name)
    except KeyError:
        return None


def _change_to(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(entry.pw_uid, entry.pw_gid, in_namespace=False)


@cache
def _in_a_namespace() -> Account | None:
    """Tried and not guessed: containers and hardened kernels forbid it in several ways."""
    nobody = _known("nobody")
    if nobody is None:
        return None
    account = Account(nobody.uid, nobody.gid, in_namespace=True)
    with tempfile.TemporaryDirectory() as folder:
        trial = Child(["true"], log=Path(folder, "log"), account=account)
        return account if trial.wait(within=10.0) == 0 else None
