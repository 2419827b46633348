"""The tests' own tools keep their promises, or the tests that rest on them prove nothing."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.apache_kafka import RealKafka
from tests.support.databases import PostgresServer
from tests.support.kafka import EmptyTopics, Kafka, create_topic, groups_with_offsets_in
from tests.support.processes import Programs
from tests.support.proxy import TcpProxy
from tests.support.wait import eventually


@pytest.fixture
def proxy(empty_dsn: str) -> Iterator[TcpProxy]:
    server = conninfo_to_dict(empty_dsn)
    with TcpProxy(str(server["host"]), int(str(server["port"]))) as proxy:
        yield proxy


@pytest.fixture
def proxied_dsn(empty_dsn: str, proxy: TcpProxy) -> str:
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("CREATE TABLE notes (note text)")
    return make_conninfo(empty_dsn, host="127.0.0.1", port=proxy.port, connect_timeout=2)


def _notes(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [note for (note,) in connection.execute("SELECT note FROM notes ORDER BY note")]


@pytest.mark.parametrize("after_bytes", [0, 1])
def test_a_lost_reply_leaves_the_commit_done_and_the_client_without_an_answer(
    empty_dsn: str, proxied_dsn: str, proxy: TcpProxy, after_bytes: int
) -> None:
    with psycopg.connect(proxied_dsn) as bystander, psycopg.connect(proxied_dsn, autocommit=True) as connection:
        lost = proxy.lose_reply_to(b"unheard", after_bytes)
        connection.execute("INSERT INTO notes VALUES (%s)", ["answered"])
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO notes VALUES (%s)", ["unheard"])
        assert lost.wait(5.0)
        bystander.execute("SELECT 1")
    assert _notes(empty_dsn) == ["answered", "unheard"]
    assert _notes(proxied_dsn) == ["answered", "unheard"], "only one reply is lost"


def test_held_replies_arrive_when_the_proxy_resumes(empty_dsn: str, proxied_dsn: str, proxy: TcpProxy) -> None:
    with psycopg.connect(proxied_dsn, autocommit=True) as connection, ThreadPoolExecutor() as pool:
        proxy.pause_replies()
        insert = pool.submit(connection.execute, "INSERT INTO notes VALUES ('held')")
        eventually(lambda: _notes(empty_dsn) == ["held"])
        assert wait([insert], timeout=0.2).not_done, "the reply had its time to come through"
        proxy.resume()
        assert insert.result(timeout=5.0).rowcount == 1


def test_a_blackhole_lets_nothing_through_and_breaks_nothing(empty_dsn: str, proxied_dsn: str, proxy: TcpProxy) -> None:
    with psycopg.connect(proxied_dsn, autocommit=True) as connection, ThreadPoolExecutor() as pool:
        proxy.blackhole()
        insert = pool.submit(connection.execute, "INSERT INTO notes VALUES ('late')")
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(proxied_dsn)
        assert _notes(empty_dsn) == []
        proxy.resume()
        assert insert.result(timeout=5.0).rowcount == 1


def test_a_cut_breaks_what_is_open_and_refuses_what_is_new_until_resumed(proxied_dsn: str, proxy: TcpProxy) -> None:
    connection = psycopg.connect(proxied_dsn)
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxied_dsn)
    proxy.resume()
    assert _notes(proxied_dsn) == []


def test_waiting_in_vain_fails_with_the_last_value() -> None:
    values = iter([0, 0])
    with pytest.raises(pytest.fail.Exception, match="last value was ''"):
        eventually(lambda: next(values, ""), within=0.1)
    assert eventually(lambda: "now") == "now"


def test_a_program_is_watched_through_its_output_and_ends_with_the_test(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        program = programs.python("-c", "import time; print('port 7 open'); time.sleep(600)")
        assert program.wait_for_line(r"port (\d+)")[1] == "7"
        with pytest.raises(pytest.fail.Exception, match="without a line"):
            programs.python("-c", "print('bye')").wait_for_line("hello")
        assert program.running
    assert program.returncode == -signal.SIGKILL


def test_a_program_can_be_interrupted(programs: Programs) -> None:
    program = programs.python("-c", "import time; print('ready'); time.sleep(600)")
    program.wait_for_line("ready")
    assert program.interrupt() == -signal.SIGINT
    assert "KeyboardInterrupt" in program.output()


# --- Databases and Kafka ------------------------------------------------------------------------------


def test_a_store_and_an_inventory_are_migrated_and_dropped_while_somebody_is_connected(
    postgres: PostgresServer, _store_template: str, store_dsn: str, inventory_dsn: str
) -> None:
    with psycopg.connect(inventory_dsn) as inventory:
        assert inventory.execute("SELECT count(*) FROM processed_events").fetchone() == (0,)
    with postgres.database("store", _store_template) as name, psycopg.connect(store_dsn) as other:
        forgotten = psycopg.connect(postgres.dsn(name), autocommit=True)
        forgotten.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('o', 1, 't', '')"
        )
        assert other.execute("SELECT count(*) FROM stored_events").fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError):
        forgotten.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(postgres.dsn(name))


def test_an_emptied_topic_has_no_messages_and_no_group_has_a_place_in_it(
    kafka: Kafka, empty_topics: EmptyTopics, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("orders")
    for value in (b"first", b"second"):
        empty_topics(name, partitions=2)
        assert groups_with_offsets_in(kafka.bootstrap, name) == []
        _produce(kafka.bootstrap, name, value)
        assert _consume_one(kafka.bootstrap, name, group=unique_name("first-to-ask")) == value


@pytest.mark.kafka
def test_a_killed_kafka_keeps_its_log_and_its_address(own_kafka: RealKafka) -> None:
    create_topic(own_kafka.bootstrap, "orders")
    address, kept = own_kafka.bootstrap, b"kept " * 1_000
    _produce(address, "orders", kept)
    assert own_kafka.folder is not None
    assert list(own_kafka.folder.glob("liblz4-java-*"))  # what Java unpacks goes with the rest, also when killed
    own_kafka.kill()
    own_kafka.start()
    assert own_kafka.bootstrap == address
    assert _consume_one(address, "orders", group="g") == kept


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", pytest.ExitCode.USAGE_ERROR)])
def test_without_a_real_kafka_tests_are_missed_loudly_and_in_ci_nothing_runs(
    programs: Programs, ci: str, code: int
) -> None:
    no_java = {"JAVA_HOME": "/nonexistent", "CI": ci}
    run = programs.python("-m", "pytest", "-k", "keeps_its_log", __file__, env=no_java)
    assert run.wait(within=60.0) == code
    loud = "CI=true, and tests need a real Apache Kafka" if ci else "NO REAL APACHE KAFKA: 1 tests did NOT run"
    assert loud in run.output()


def _produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": "lz4"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(20.0) == 0


def _consume_one(bootstrap: str, topic: str, group: str) -> bytes | None:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6000}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    message = eventually(lambda: consumer.poll(0.1), within=30.0)
    assert message is not None and message.error() is None
    consumer.commit(message=message, asynchronous=False)
    consumer.close()
    return message.value()
