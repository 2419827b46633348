"""Effectively once: what the client says late, or not at all, loses no message of a transaction."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from infrastructure.kafka_faults import Fault
from infrastructure.publisher import Mark, OutgoingMessage, PublishFailed
from infrastructure.transactional_publisher import TransactionalPublisher
from tests.support.kafka import Kafka, MakeTopic
from tests.support.transactions import (
    NEVER,
    START,
    committed,
    nothing,
    numbered,
    publish,
    publisher,
    resume,
    settings,
)

pytestmark = pytest.mark.kafka


class Watched(Producer):
    """The real client. Keeps whom it is to report each message to, so that a test can report in its place."""

    reports: list[Callable[[KafkaError, object], None]]

    def produce(self, *message: Any, on_delivery: Callable[..., None], **others: Any) -> None:
        self.reports.append(on_delivery)
        super().produce(*message, on_delivery=on_delivery, **others)


class Undelivered:
    """What a report of the client is about."""

    def __init__(self, message: OutgoingMessage) -> None:
        self.topic, self.key, self.value = (lambda: message.topic), (lambda: message.key), (lambda: message.value)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "reports", [], raising=False)
    monkeypatch.setattr("infrastructure.producer.Producer", Watched)
    return Watched


def with_a_short_queue(kafka: Kafka, topic: str) -> TransactionalPublisher:
    """A batch of more than ten messages is handed over in parts."""
    return TransactionalPublisher(settings(kafka.bootstrap), topic, [topic], {"queue.buffering.max.messages": 10})


@pytest.mark.parametrize("error", [KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_late_report_of_a_producer_that_was_given_up_does_not_cut_its_successors_transaction_short(
    kafka: Kafka, topics: MakeTopic, watched: type[Watched], error: int
) -> None:
    topic = topics("orders")
    subject = with_a_short_queue(kafka, topic)
    resume(subject)
    given_up = numbered(topic, range(500, 503))
    subject.send(given_up, Mark(503), nothing).drop()
    resume(subject)
    sending = subject.send(numbered(topic, range(100)), Mark(100), nothing)

    def turn() -> None:
        watched.reports[0](KafkaError(error), Undelivered(given_up[0]))

    assert sending.wait(NEVER, turn) == 100
    assert committed(kafka.bootstrap, topic) == [b"%d" % n for n in range(100)]


def test_what_was_not_handed_over_to_the_end_is_never_committed(
    kafka: Kafka, topics: MakeTopic, watched: type[Watched]
) -> None:
    topic = topics("orders")
    subject = with_a_short_queue(kafka, topic)
    resume(subject)
    messages = numbered(topic, range(100))
    sending = subject.send(messages, Mark(100), nothing)

    def turn() -> None:
        watched.reports[0](KafkaError(KafkaError._MSG_TIMED_OUT), Undelivered(messages[0]))

    with pytest.raises(PublishFailed) as failed:
        sending.wait(NEVER, turn)

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.BROKER)
    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []


class LosesTheMark(Producer):
    """Its thread ends of something that is no error of Kafka's."""

    def send_offsets_to_transaction(self, *_: Any) -> None:
        raise SystemError("the client raised its own death")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_the_position_no_message_is_committed(
    kafka: Kafka, topics: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics("orders")
    subject = publisher(kafka.bootstrap, topic)
    with monkeypatch.context() as patched:
        patched.setattr("infrastructure.producer.Producer", LosesTheMark)
        resume(subject)
        with pytest.raises(PublishFailed) as failed:
            publish(subject, numbered(topic, range(3)), Mark(3))

    assert (failed.value.acknowledged, failed.value.fault) == (0, Fault.PRODUCER)
    assert resume(subject) == START
    assert committed(kafka.bootstrap, topic) == []
