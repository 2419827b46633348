"""Members of one consumer group on one topic, and someone who sends."""

from contextlib import ExitStack

from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber
from tests.support.group import committed
from tests.support.messages import Sender
from tests.support.wait import eventually


class Group:
    def __init__(self, bootstrap: str, name: str, topic: str, stack: ExitStack, **settings: str | float) -> None:
        """stack: closes the members. settings: theirs."""
        self.bootstrap, self.name, self.topic, self.settings = bootstrap, name, topic, settings
        self.sender = Sender(bootstrap)
        self._stack = stack

    def send(self, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.sender.send(self.topic, value, partition=partition)
        self.sender.flush()

    def member(self, **changes: str | int) -> Subscriber:
        """changes: to the consumer's configuration, with underscores for dots."""
        settings = Settings.model_validate({"kafka_bootstrap_servers": self.bootstrap} | self.settings)
        dotted = {name.replace("_", "."): value for name, value in changes.items()}
        return self._stack.enter_context(Subscriber(settings, self.name, [self.topic], dotted))

    def committed(self, partition: int = 0) -> int | None:
        return committed(self.bootstrap, self.name, self.topic, partition)


def receive(subscriber: Subscriber, many: int, within: float = 20.0) -> list[Record]:
    """That many records, as they come."""
    records: list[Record] = []

    def enough() -> bool:
        records.extend(subscriber.poll(many - len(records), 0.1))
        return len(records) >= many

    eventually(enough, within)
    return records


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]
