"""What is stored is durable data: these samples are rows as they were written, and must be readable for ever.

When this fails, do not edit a sample: give the renamed class its old TOPIC, or write the upcast that is missing.
A new event, or a new version of one, adds a line.
"""

import json
from pathlib import Path

import pytest
from eventsourcing.persistence import StoredEvent

import domain.orders.application  # noqa: F401  registers the events of orders
from domain.base import stored_topics
from domain.event_mapper import EventMapper

SAMPLES = [json.loads(line) for line in (Path(__file__).parent / "stored_events.jsonl").read_text().splitlines()]


def test_every_stored_topic_of_the_business_has_a_sample() -> None:
    business = {t for t, event_class in stored_topics().items() if event_class.__module__.startswith("domain.")}
    assert business == {sample["topic"] for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['topic']} v{sample['class_version']}")
def test_a_stored_event_of_every_version_is_still_readable(sample: dict[str, object]) -> None:
    stored = StoredEvent("ord_1", 1, str(sample["topic"]), json.dumps(sample["state"]).encode())
    event = EventMapper().to_domain_event(stored)
    assert event.model_dump(mode="json", exclude={"originator_id", "originator_version"}) == sample["event"]
