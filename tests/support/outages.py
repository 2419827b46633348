"""Servers that fall silent, for a test that has one of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.apache_kafka import RealKafka
from tests.support.kafka_programs import NoKafka, find_kafka_programs
from tests.support.missing import skip_unless_ci


@contextmanager
def breakable_kafka() -> Iterator[RealKafka]:
    """A broker for the tests of one module to freeze, stop and kill; each leaves it running."""
    programs = find_kafka_programs()
    if isinstance(programs, NoKafka):
        skip_unless_ci(f"this needs an Apache Kafka of its own: {programs.reason}")
    with RealKafka(programs) as broker:
        yield broker


@contextmanager
def frozen(broker: RealKafka) -> Iterator[None]:
    """It does not answer, and its connections stay open."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    # Its threads stop one after another; until the last one has, it may still answer.
    os.waitid(os.P_PID, broker.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)
