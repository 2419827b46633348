"""What a handler of batches answers is about its events, or nothing is done."""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from psycopg import Connection
from psycopg.pq import TransactionStatus

from domain.contracts import Contract
from projections.applying import AnswerAboutNoEvent, TransactionBroken, apply_contracts
from projections.base import Answer, BatchProjection, Quarantine
from tests.support.messages import placed


class NoDatabase:
    """As far as a handler that does nothing needs a transaction."""

    class info:
        transaction_status = TransactionStatus.INTRANS


class Ended:
    class info:
        transaction_status = TransactionStatus.IDLE


NO_DATABASE = cast(Connection, NoDatabase)
REFUSED = Quarantine("as the test wants it")


class Answers(BatchProjection):
    consumer_name = "answers"
    contracts = ()

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Answer]:
        return self._answers


def test_an_answer_about_an_event_of_the_batch_is_passed_on() -> None:
    one, other = placed("ord_1"), placed("ord_2")
    assert apply_contracts([one, other], Answers({other.event_id: REFUSED}), NO_DATABASE) == {other.event_id: REFUSED}


def test_an_answer_about_an_event_that_is_not_in_the_batch_is_not_taken_for_consent() -> None:
    with pytest.raises(AnswerAboutNoEvent):
        apply_contracts([placed("ord_1")], Answers({placed("ord_2").event_id: REFUSED}), NO_DATABASE)


def test_a_transaction_that_a_handler_has_ended_is_not_taken_for_one_that_holds_its_events() -> None:
    with pytest.raises(TransactionBroken):
        apply_contracts([placed("ord_1")], Answers({}), cast(Connection, Ended))


def test_nothing_is_held_against_the_last_event_once_all_are_handled() -> None:
    told = list[str]()
    before, after = (lambda: told.append("before")), (lambda: told.append("after"))
    apply_contracts([placed("ord_1"), placed("ord_2")], Answers({}), NO_DATABASE, before, after)
    assert told == ["before", "after"]
