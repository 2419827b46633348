"""`counterfoil project skip`: a projection fed by the store goes on without the event that holds it."""

from tests.acceptance.test_command_line import ORDER, in_environment
from tests.support.processes import Programs
from tests.support.stored_events import autocommit, write
from tests.support.wait import eventually


def test_an_event_that_holds_the_summary_is_skipped_by_a_command(store_dsn: str, programs: Programs) -> None:
    env = {"COUNTERFOIL_STORE_DSN": store_dsn}
    counterfoil = in_environment(env)
    assert counterfoil("db", "migrate").returncode == 0
    with autocommit(store_dsn) as writer:
        write(writer, "no order of ours")
    counterfoil(*ORDER)
    runner = programs.counterfoil("project", "projections.order_summary", env=env)
    runner.wait_for_line("state=held", within=60.0)
    assert "held before position 1:" in counterfoil("status").stderr
    assert counterfoil("project", "skip", "projections.order_summary", "1").returncode == 2, "without a reason"
    wrong = counterfoil("project", "skip", "projections.order_summary", "2", "--reason", "a slip")
    assert (wrong.returncode, "it is at 1" in wrong.stderr) == (1, True)
    skipped = counterfoil("project", "skip", "projections.order_summary", "1", "--reason", "not an order")
    assert skipped.returncode == 0
    eventually(lambda: counterfoil("summary", "order", "ord_1").returncode == 0, within=60.0)
