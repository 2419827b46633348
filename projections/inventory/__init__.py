"""Stock and reservations, fed by the orders topics. Reference: copy this folder to start another projection."""

from pathlib import Path

from infrastructure.migrate import Migrations
from projections import inbox

MIGRATIONS = [inbox.MIGRATIONS, Migrations("inventory", Path(__file__).parent / "migrations")]
"""Everything that this projection's database consists of, in order."""
