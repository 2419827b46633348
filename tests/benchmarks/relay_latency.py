"""A relay as a process: commit to consumer beside Kafka alone, its share of a core when idle, and its memory."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from domain.orders.application import Orders
from infrastructure.event_store import store_env
from infrastructure.postgres import connect
from tests.benchmarks.append import our_order
from tests.benchmarks.harness import Comparison
from tests.support.kafka import create_topic, running_kafka

PER_SECOND = 40
SECONDS = 30
IDLE_SECONDS = 20
BACKLOG = int(os.environ.get("COUNTERFOIL_BENCH_BACKLOG", "1000000"))
PLACED, CANCELLED, ALONE = "orders.placed.v1", "orders.cancelled.v1", "kafka-alone"

FILL = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT 'backlog_' || number, 1, sample.topic, sample.state
    FROM generate_series(1, %s) AS number, (SELECT topic, state FROM stored_events LIMIT 1) AS sample
"""
CHECKPOINT = "SELECT coalesce(min(position), 0) FROM relay_checkpoints"
HIGHEST = "SELECT coalesce(max(position), 0) FROM stored_events"


def comparisons(store_dsn: str, library_dsn: str) -> Iterator[Comparison]:
    """Prints its own tables: these are no rates."""
    if not Path("/proc/self/stat").exists():
        print("\nNo /proc here: latency, idle share and memory of a relay are not measured.")
        return
    with running_kafka() as kafka, closing(Orders(env=store_env(store_dsn))) as orders:
        for topic in (PLACED, CANCELLED, ALONE):
            create_topic(kafka.bootstrap, topic)
        orders.save(our_order())
        with relay_process(store_dsn, kafka.bootstrap) as relay:
            wait_until_drained(store_dsn)
            show_latency(orders, kafka.bootstrap)
            show_idle_share(relay)
        show_memory(store_dsn, kafka.bootstrap)
    yield from ()


@contextmanager
def relay_process(dsn: str, bootstrap: str) -> Iterator["subprocess.Popen[bytes]"]:
    ours = {"COUNTERFOIL_STORE_DSN": dsn, "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    command = [sys.executable, "-m", "counterfoil", "relay", "domain.orders"]
    process = subprocess.Popen(command, env={**os.environ, **ours}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


# --- Latency -------------------------------------------------------------------------------------------


def show_latency(orders: Orders, bootstrap: str) -> None:
    """Alternately an order is saved and a message is produced; one consumer notes when each arrives."""
    arrived: dict[str, dict[bytes, float]] = {PLACED: {}, ALONE: {}}
    done, ready = Event(), Event()
    consumer = Thread(target=note_arrivals, args=(bootstrap, arrived, ready, done))
    consumer.start()
    ready.wait(30)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    sent: dict[str, dict[bytes, float]] = {PLACED: {}, ALONE: {}}
    next_at = time.perf_counter()
    for number in range(PER_SECOND * SECONDS):
        next_at += 1 / PER_SECOND
        time.sleep(max(0.0, next_at - time.perf_counter()))
        order, key = our_order(), b"%d" % number
        orders.save(order)
        sent[PLACED][order.id.encode()] = time.perf_counter()
        sent[ALONE][key] = time.perf_counter()
        producer.produce(ALONE, b"x" * 250, key)
        producer.poll(0)
    producer.flush(30)
    until = time.monotonic() + 30
    while time.monotonic() < until and any(len(arrived[topic]) < len(sent[topic]) for topic in sent):
        time.sleep(0.1)
    done.set()
    consumer.join()
    print(f"\nCommit to consumer at {PER_SECOND} events/s  (goal: p50 within 3 ms, p99 within 15 ms of Kafka alone)")
    for topic, name in ((ALONE, "Kafka alone"), (PLACED, "store to consumer")):
        taken = sorted(1_000 * (arrived[topic][key] - at) for key, at in sent[topic].items())
        p99 = taken[int(len(taken) * 0.99)]
        print(f"  {name:<20} p50 {statistics.median(taken):7.2f} ms   p99 {p99:7.2f} ms   n {len(taken)}", flush=True)


def note_arrivals(bootstrap: str, arrived: dict[str, dict[bytes, float]], ready: Event, done: Event) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END) for topic in arrived])
    consumer.poll(2)
    ready.set()
    while not done.is_set():
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            arrived[str(message.topic())][message.key() or b""] = time.perf_counter()
    consumer.close()


# --- CPU and memory -------------------------------------------------------------------------------------


def show_idle_share(relay: "subprocess.Popen[bytes]") -> None:
    time.sleep(5)
    before, started = cpu_seconds(relay.pid), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    share = (cpu_seconds(relay.pid) - before) / (time.perf_counter() - started)
    print(f"\nIdle relay, over {IDLE_SECONDS} s  (goal: under 1 % of a core)\n  {share:.2%} of a core", flush=True)


def show_memory(dsn: str, bootstrap: str) -> None:
    with connect(dsn, application_name="benchmark") as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute(FILL, (BACKLOG,))
    seen: list[float] = []
    with relay_process(dsn, bootstrap) as relay:
        started = time.perf_counter()
        wait_until_drained(dsn, lambda: seen.append(resident_megabytes(relay.pid)))
        elapsed = time.perf_counter() - started
    tenths = [seen[len(seen) * tenth // 10] for tenth in range(10)] + seen[-1:]
    print(f"\nMemory while a backlog of {BACKLOG:,} events is drained ({BACKLOG / elapsed:,.0f}/s)  (goal: flat)")
    print("  MB at each tenth: " + " ".join(f"{megabytes:.0f}" for megabytes in tenths), flush=True)


def wait_until_drained(dsn: str, look: Callable[[], None] = lambda: None) -> None:
    with connect(dsn, application_name="benchmark") as connection:
        (highest,) = connection.execute(HIGHEST).fetchone() or (0,)
        while (connection.execute(CHECKPOINT).fetchone() or (0,))[0] < highest:
            look()
            time.sleep(0.5)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
