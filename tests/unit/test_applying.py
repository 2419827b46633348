"""What a handler of batches answers is about its events, or nothing is done."""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from psycopg import Connection
from psycopg.pq import TransactionStatus

from domain.contracts import Contract
from projections.applying import AnswerAboutNoEvent, apply_contracts
from projections.base import Answer, BatchProjection, Quarantine
from tests.support.messages import placed


class NoDatabase:
    """As far as a handler that does nothing needs a transaction."""

    class info:
        transaction_status = TransactionStatus.INTRANS


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
