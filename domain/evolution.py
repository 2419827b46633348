"""Stored topics and versions against the code: what it has a class and all conversion steps for."""

from domain.base import stored_topics


def why_unreadable(topic: str, version: int) -> str | None:
    """Why no event that was stored under this topic in this version can be read; None when nothing is in its way.

    It does not look at any event: a state may still lack a field.
    """
    event_class = stored_topics().get(topic)
    if event_class is None:
        return "no class in the code has this topic"
    if version < 1:
        return "class_version is not a whole number from 1"
    if version > event_class.class_version:
        return f"the code knows versions up to {event_class.class_version}"
    steps = [f"upcast_v{step}_v{step + 1}" for step in range(version, event_class.class_version)]
    missing = [step for step in steps if not hasattr(event_class, step)]
    return f"the code has no {missing[0]}" if missing else None
