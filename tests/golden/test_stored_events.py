"""What is stored is durable data: these samples are rows as they were written, and must be readable for ever.

When this fails, do not edit a sample: give the renamed class its old TOPIC, or write the upcast that is missing.
A new event, or a new version of one, adds a line.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from eventsourcing.persistence import StoredEvent

from domain.base import stored_topics
from domain.event_mapper import EventMapper
from domain.loading import load_business

SAMPLES = [json.loads(line) for line in (Path(__file__).parent / "stored_events.jsonl").read_text().splitlines()]

load_business()


def test_every_version_of_every_stored_topic_of_the_business_has_a_sample() -> None:
    business = {
        (topic, version)
        for topic, event_class in stored_topics().items()
        if event_class.__module__.startswith("domain.")
        for version in range(1, event_class.class_version + 1)
    }
    assert business == {(sample["topic"], sample["class_version"]) for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['topic']} v{sample['class_version']}")
def test_a_stored_event_of_every_version_is_still_readable(sample: dict[str, Any]) -> None:
    version = sample["class_version"]
    state = {"class_version": version} | sample["state"] if version > 1 else sample["state"]
    stored = StoredEvent("ord_1", 1, sample["topic"], json.dumps(state).encode())
    event = EventMapper().to_domain_event(stored)
    assert event.model_dump(mode="json", exclude={"originator_id", "originator_version"}) == sample["event"]
