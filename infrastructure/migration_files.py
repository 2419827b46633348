"""Migrations as files: `NNNN_what_it_does.sql`, numbered for each component by itself."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Migrations:
    """The files of one component, which has its own numbering."""

    component: str
    folder: Path


STORE_MIGRATIONS = (Migrations("store", Path(__file__).parent / "migrations" / "store"),)
"""What a store database needs."""


@dataclass(frozen=True)
class MigrationFile:
    """One file, as migrate.py explains."""

    component: str
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def in_transaction(self) -> bool:
        return not self.text.startswith("-- no transaction\n")

    @property
    def statements(self) -> list[str]:
        return [statement for statement in re.split(r";\s*\n", self.text + "\n") if statement.strip()]


def read_files(migrations: Migrations) -> list[MigrationFile]:
    """In the order of their numbers. Raises ValueError when there is none, or two have one number."""
    files = []
    for path in sorted(migrations.folder.glob("*.sql")):
        number, _, _ = path.name.partition("_")
        files.append(MigrationFile(migrations.component, int(number), path.name, path.read_text(encoding="utf-8")))
    if len({file.version for file in files}) < len(files) or not files:
        raise ValueError(f"{migrations.folder}: no migrations, or two with the same number")
    return files
