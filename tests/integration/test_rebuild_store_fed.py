"""A projection that is fed by the store changes places too, and loses no effect by it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg
import pytest
from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from infrastructure.migrate import migrate
from infrastructure.postgres import connect
from projections import effects
from projections.base import Quarantine
from projections.order_summary.projection import OrderSummary
from projections.rebuild import roll_back
from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.target import Target
from projections.skipping import skip
from tests.support.feeding import feeding
from tests.support.inventory import count
from tests.support.rebuilding import NEVER, place, rebuilt, with_projection
from tests.support.summaries import OUTBOXES, fold, read, with_summary
from tests.support.wait import eventually

HELD = "SELECT held_position FROM projection_positions WHERE held_position IS NOT NULL"
UNMAPPABLE = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    VALUES ('ord_x', 1, 'order.unknown', '{}')
"""


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


class Fussy(OrderSummary):
    """Code that does not take one order, now or ever."""

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        if any(isinstance(each, OrderPlaced) and each.key == "ord_3" for each in contracts):
            raise RuntimeError("not this one")
        return super().handle_batch(contracts, tx)


def test_what_an_operator_has_skipped_stays_out_and_stops_no_rebuild(target: Target) -> None:
    """One event that no handler takes, and one that nobody can map."""
    target = with_projection(target, Fussy())
    place(target.dsn, range(1, 5))
    with psycopg.connect(target.dsn) as writing:
        writing.execute(UNMAPPABLE)
    place(target.dsn, range(8, 10))
    with connect(target.dsn, application_name="test") as live:

        def passed() -> int:
            (position,) = live.execute(HELD).fetchone() or (None,)
            if position is not None:
                skip(live, target.name, position, "never meant to be there", "me@here")
            return count(live, "skipped_events")

        with feeding(target.dsn, target.projection, OUTBOXES):
            eventually(lambda: passed() == 2, within=60)
            eventually(lambda: count(live, "order_summaries") == 5, within=60)
        skipped = [position for (position,) in live.execute("SELECT position FROM skipped_events ORDER BY position")]
        before = read(live)
        outcome = rebuilt(target)
        assert outcome.left_out == skipped
        assert outcome.swapped is not None
        assert outcome.swapped.returnable
        assert read(live) == before
        assert roll_back(target, NEVER, 5.0) is not None
        assert read(live) == before
