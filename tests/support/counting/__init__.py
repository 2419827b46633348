"""A projection for tests whose rows tell when an event was applied twice."""

from pathlib import Path

from infrastructure.migrate import Migrations
from projections import effects, inbox

MIGRATIONS = [inbox.MIGRATIONS, effects.MIGRATIONS, Migrations("counting", Path(__file__).parent / "migrations")]
