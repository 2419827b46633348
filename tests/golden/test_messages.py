"""What is published of an event is the same bytes for ever: value, key, headers and the event id in them.

Consumers know events by these ids, and a repeat must be told from a new event. When this fails, the code is wrong,
not the sample; a new contract adds a line.
"""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from domain.loading import load_business
from infrastructure.delivery import OutgoingMessage
from infrastructure.event_reader import RecordedEvent
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper, Unmappable
from tests.support.outgoing import messages_of

SAMPLES = [json.loads(line) for line in (Path(__file__).parent / "messages.jsonl").read_text().splitlines()]
NAMESPACE = UUID("7a1e0c7e-6f0a-4b55-9d0e-4a1d0f5f4c11")
OUTBOX = load_outbox("domain.orders")

load_business()


def recorded(sample: dict[str, Any]) -> RecordedEvent:
    state = sample["state"].encode()
    return RecordedEvent(sample["originator_id"], sample["originator_version"], sample["topic"], state, 1)


def published(mapped: list[OutgoingMessage] | Unmappable) -> dict[str, Any]:
    assert not isinstance(mapped, Unmappable), mapped
    (message,) = mapped
    headers = [[name, value.decode()] for name, value in message.headers]
    return {"topic": message.topic, "key": message.key.decode(), "value": message.value.decode(), "headers": headers}


def test_every_contract_has_a_sample() -> None:
    assert {contract.topic for contract in OUTBOX.contracts} == {sample["message"]["topic"] for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['originator_id']} {sample['topic']}")
def test_an_event_becomes_the_same_bytes_as_ever(sample: dict[str, Any]) -> None:
    messages = messages_of(MessageMapper(OUTBOX, NAMESPACE), recorded(sample))

    assert published(messages) == sample["message"]


def test_mapped_together_they_are_the_same_bytes() -> None:
    mapped = MessageMapper(OUTBOX, NAMESPACE).messages_of_all([recorded(sample) for sample in SAMPLES])

    assert [published(each) for each in mapped] == [sample["message"] for sample in SAMPLES]
