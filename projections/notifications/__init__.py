"""Tells customers that their order is confirmed. Reference for external effects: copy this folder to make another."""

from pathlib import Path

from infrastructure.migrate import Migrations
from projections import effects, inbox

MIGRATIONS = [inbox.MIGRATIONS, effects.MIGRATIONS, Migrations("notifications", Path(__file__).parent / "migrations")]
"""Everything that this projection's database consists of, in order."""
