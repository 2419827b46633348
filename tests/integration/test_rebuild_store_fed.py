"""A projection that is fed by the store changes places too, and loses no effect by it."""

from dataclasses import replace

import pytest

from infrastructure.migrate import migrate
from infrastructure.postgres import connect
from projections import effects
from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.target import Target
from tests.support.feeding import feeding
from tests.support.rebuilding import place, rebuilt
from tests.support.summaries import OUTBOXES, fold, read, with_summary
from tests.support.wait import eventually


@pytest.fixture
def target(store_dsn: str) -> Target:
    """As if it asked for effects."""
    with_summary(store_dsn)
    migrate(store_dsn, [effects.MIGRATIONS])
    target = Target.of("projections.order_summary", store_dsn, store_dsn)
    migrations = [*target.loaded.migrations, effects.MIGRATIONS]
    return replace(target, loaded=replace(target.loaded, migrations=migrations))


def test_a_swap_before_its_runner_has_asked_for_all_effects_is_refused(target: Target) -> None:
    place(target.dsn, range(1, 8))
    with connect(target.dsn, application_name="test") as live:
        with pytest.raises(RebuildRefused, match="their effects would be lost"):
            rebuilt(target, accept_differences=True)
        assert not read(live)[0]
        with feeding(target.dsn, target.projection, OUTBOXES):
            eventually(lambda: read(live) == fold(target.dsn), within=60)
        swapped = rebuilt(target).swapped
        assert swapped is not None
        assert swapped.returnable
        assert read(live) == fold(target.dsn)
