"""No record comes before one that precedes it in its partition, whatever Kafka's client brings."""

from threading import Event

import pytest
from confluent_kafka import OFFSET_STORED
from prometheus_client import REGISTRY

from infrastructure import rereading
from infrastructure.progress import MOST_CHECKS
from infrastructure.rereading import REFUSED_SECONDS
from infrastructure.subscriber import Subscriber, SubscriberFailed
from tests.support.scripted_client import TOPIC, ScriptedClient, brought, scripted

Pair = tuple[Subscriber, ScriptedClient]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    return scripted(monkeypatch)


def out_of_line(came: str) -> float:
    labels = {"group": "group", "came": came}
    return REGISTRY.get_sample_value("counterfoil_subscriber_out_of_line_total", labels) or 0.0


def polled(subscriber: Subscriber, times: int = 1) -> list[int]:
    return [record.offset for _ in range(times) for record in subscriber.poll(100, 0.0)]


def test_reading_begins_where_the_group_had_come_to(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4)])
    assert polled(subscriber) == [3, 4]
    assert (client.starts, client.seeks) == ([3], [])


def test_without_a_committed_offset_reading_begins_with_the_oldest_record(pair: Pair) -> None:
    subscriber, client = pair
    client.committed_offset, client.oldest = None, 40
    client.script.extend([client.assign, *brought(40, 41)])
    assert polled(subscriber) == [40, 41]
    assert (client.starts, client.seeks) == ([40], [])
    subscriber.commit(wait=0.0)
    assert client.commits == []


def test_where_the_broker_tells_nothing_the_clients_own_beginning_is_believed(pair: Pair) -> None:
    subscriber, client = pair
    client.is_silent = True
    client.script.extend([client.assign, *brought(17, 18)])
    assert polled(subscriber) == [17, 18]
    assert (client.starts, client.seeks) == ([OFFSET_STORED], [])


def test_what_the_broker_did_not_tell_is_asked_again_when_the_first_record_comes(pair: Pair) -> None:
    subscriber, client = pair
    client.is_silent = True
    client.script.append(client.assign)
    polled(subscriber)
    client.is_silent = False
    client.script.extend([*brought(17), None, *brought(3, 4)])
    assert polled(subscriber, times=2) == [3, 4]
    assert (client.starts, client.seeks) == ([OFFSET_STORED], [3])


def test_records_of_the_time_before_a_rebalance_do_not_overtake_those_before_them(pair: Pair) -> None:
    """As it was seen once: the last records that had been fetched came first, and then the others."""
    subscriber, client = pair
    client.script.extend([client.assign, *brought(153, 154), None, *brought(3, 4, 5)])
    assert polled(subscriber) == []
    assert client.seeks == [3]
    assert polled(subscriber) == [3, 4, 5]


def test_records_that_the_client_left_out_come_before_what_followed_them(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 9, 10), None, *brought(5, 6, 7, 8, 9, 10)])
    assert polled(subscriber) == [3, 4]
    assert client.seeks == [5]
    assert polled(subscriber) == [5, 6, 7, 8, 9, 10]


def test_a_gap_that_is_real_is_read_once_more_and_those_after_it_are_not(pair: Pair) -> None:
    """As after transactions."""
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 5), None, *brought(5, 7, 9)])
    assert polled(subscriber, times=2) == [3, 5, 7, 9]
    assert client.seeks == [4]


def test_a_wider_gap_than_those_that_were_proved_is_read_once_more(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 5), None, *brought(5, 7, 10), None, *brought(8, 9, 10)])
    assert polled(subscriber, times=3) == [3, 5, 7, 8, 9, 10]
    assert client.seeks == [4, 8]


@pytest.mark.parametrize("stands_still", ["idling", "keeping alive", "holding", "another partition going"])
def test_the_first_gap_after_the_client_began_anew_is_read_once_more_also_where_gaps_are_usual(
    pair: Pair, stands_still: str
) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 5), None, *brought(5, 7), None])
    assert polled(subscriber, times=2) == [3, 5, 7]
    match stands_still:
        case "idling":
            subscriber.idle(Event(), 0.001)
        case "keeping alive":
            subscriber.pause()
            subscriber.resume()
        case "holding":
            subscriber.finish(subscriber.poll(1, 0.0))
            subscriber.hold([(TOPIC, 0)], 0.0)
        case _:
            client._on_revoke(client, [])
    client.script.extend([*brought(30, 31), None, *brought(8, 9)])
    assert [offset for offset in polled(subscriber, times=3) if offset > 7] == [8, 9]
    assert client.seeks == [4, 8]


def test_nothing_is_delivered_while_the_client_cannot_go_back(pair: Pair) -> None:
    subscriber, client = pair
    client.refuses_to_seek = True
    client.script.extend([client.assign, *brought(153), None, *brought(153), None])
    assert polled(subscriber, times=2) == []
    client.refuses_to_seek = False
    client.script.extend([*brought(154), None, *brought(3, 4)])
    assert polled(subscriber, times=2) == [3, 4]
    assert client.seeks == [3]


def test_a_partition_that_cannot_be_read_again_is_named_once_and_ends_the_client_after_a_while(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber, client = pair
    client.refuses_to_seek = True
    client.script.extend([client.assign, *brought(153), None])
    now = 1_000.0
    monkeypatch.setattr(rereading, "monotonic", lambda: now)
    assert polled(subscriber, times=10) == []
    now += REFUSED_SECONDS - 1
    assert polled(subscriber, times=10) == []
    [told] = [vars(record) for record in caplog.records if "stands still" in record.message]
    assert (told["topic"], told["partition"], told["offset"]) == (TOPIC, 0, 3)
    now += 1
    with pytest.raises(SubscriberFailed) as failed:
        subscriber.poll(1, 0.0)
    assert failed.value.error == "seek_refused"


def test_a_refusal_of_the_last_assignment_does_not_end_the_client(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber, client = pair
    client.refuses_to_seek = True
    client.script.extend([client.assign, *brought(153), None])
    now = 1_000.0
    monkeypatch.setattr(rereading, "monotonic", lambda: now)
    assert polled(subscriber) == []
    now += REFUSED_SECONDS
    client.script.extend([client.revoke, client.assign, *brought(153), None])
    assert polled(subscriber, times=2) == []


def test_a_gap_that_cannot_be_proved_is_told_and_never_passed(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3), None])
    subscriber.finish(subscriber.poll(100, 0.0))
    for offset in range(153, 154 + MOST_CHECKS):
        client.script.extend([*brought(offset, offset + 1), None])
    assert polled(subscriber, times=MOST_CHECKS) == []
    with pytest.raises(SubscriberFailed) as failed:
        subscriber.poll(100, 0.0)
    assert failed.value.error == "gap_not_proved"
    [told] = [vars(record) for record in caplog.records if record.levelname == "ERROR"]
    assert (told["partition"], told["first_missing"], told["last_missing"]) == (0, 4, 152 + MOST_CHECKS)
    assert client.seeks[:MOST_CHECKS] == [4] * MOST_CHECKS
    with pytest.raises(SubscriberFailed):
        subscriber.poll(100, 0.0)
    subscriber.close()
    assert client.commits == [4]


def test_deleted_records_make_no_gap_believable(pair: Pair) -> None:
    subscriber, client = pair
    client.oldest = 500
    client.script.extend([client.assign, *brought(500), None, *brought(500, 809), None, *brought(501, 502)])
    assert polled(subscriber, times=3) == [500, 501, 502]
    assert client.seeks == [3, 501]


def test_where_it_is_not_known_whether_records_were_deleted_no_gap_becomes_believable(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(5), None])
    polled(subscriber)
    client.is_silent = True
    client.script.extend([*brought(5, 8), None, *brought(6, 7, 8)])
    assert polled(subscriber, times=2) == [5, 6, 7, 8]
    assert client.seeks == [3, 6]


def test_a_gap_that_is_believed_unread_is_counted(pair: Pair) -> None:
    subscriber, client = pair
    before = out_of_line("after_gap")
    client.script.extend([client.assign, *brought(3, 5), None, *brought(5, 7, 9)])
    assert polled(subscriber, times=2) == [3, 5, 7, 9]
    assert out_of_line("after_gap") - before == 2


def test_a_record_from_before_the_start_is_not_delivered(pair: Pair) -> None:
    subscriber, client = pair
    client.committed_offset = 100
    client.script.extend([client.assign, *brought(50, 51), None, *brought(100, 101)])
    assert polled(subscriber, times=2) == [100, 101]
    assert client.seeks == [100]


def test_where_a_topic_was_made_anew_its_first_records_are_delivered(pair: Pair) -> None:
    subscriber, client = pair
    client.committed_offset = 100
    client.script.extend([client.assign, *brought(0, 1), None, *brought(0, 1)])
    assert polled(subscriber, times=2) == [0, 1]


def test_a_record_taken_before_a_rebalance_is_not_one_of_the_next_assignment(pair: Pair) -> None:
    """The partition goes and comes back within one poll."""
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3), client.revoke, client.assign, None, *brought(3, 4)])
    assert polled(subscriber) == []
    assert polled(subscriber) == [3, 4]


def test_when_the_client_goes_back_the_records_come_again_in_order_and_hold_the_offset(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5), None])
    first = subscriber.poll(100, 0.0)
    subscriber.finish(first[:2])
    client.script.extend(brought(3, 4, 5, 6))
    again = subscriber.poll(100, 0.0)
    assert [record.offset for record in again] == [3, 4, 5, 6]
    subscriber.finish(first)
    subscriber.finish(again[1:])
    assert client.seeks == []
    client.script.append(client.revoke)
    polled(subscriber)
    assert client.commits == []  # the third is due, which is where the group is
    assert subscriber.poll(1, 0.0) == []


@pytest.mark.parametrize("stands_still", ["paused", "held"])
def test_a_pause_ends_with_the_assignment(pair: Pair, stands_still: str) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3), None])
    polled(subscriber)
    subscriber.pause() if stands_still == "paused" else subscriber.hold([(TOPIC, 0)], 600.0)
    assert client.paused == {0}
    client.script.append(client.revoke)
    polled(subscriber)
    assert client.paused == set()


def test_what_comes_to_a_paused_member_is_paused(pair: Pair) -> None:
    subscriber, client = pair
    subscriber.pause()
    client.script.append(client.assign)
    polled(subscriber)
    assert client.paused == {0}


def test_a_poll_brings_what_was_coming(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5, 6, 7)])
    assert [record.offset for record in subscriber.poll(2, 0.0)] == [3, 4]
    for expected in ([5, 6], [7], []):
        coming = subscriber.coming(2)
        assert [record.offset for record in coming] == expected
        assert all(now is then for now, then in zip(subscriber.poll(2, 0.0), coming, strict=True))


def test_no_more_than_what_is_coming_next_is_taken_from_the_client(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(*range(3, 13))])
    subscriber.poll(2, 0.0)
    assert [record.offset for record in subscriber.coming(100)] == [5, 6]


def test_what_was_coming_of_a_partition_that_is_taken_away_does_not_come(pair: Pair) -> None:
    """The client is asked at each poll, also while records are there."""
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5, 6)])
    subscriber.finish(subscriber.poll(2, 0.0))
    client.script.append(client.revoke)
    assert subscriber.poll(2, 0.0) == []
    assert (subscriber.coming(2), client.commits) == ([], [5])


def test_what_is_coming_is_not_finished_and_its_offset_is_not_committed(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5, 6)])
    records = subscriber.poll(2, 0.0)
    subscriber.finish(records)
    subscriber.commit(wait=0.0)
    assert client.commits == [5]


def test_after_a_rewind_what_failed_comes_before_what_was_coming(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5, 6)])
    subscriber.poll(2, 0.0)
    subscriber.rewind()
    assert [record.offset for record in subscriber.poll(4, 0.0)] == [3, 4, 5, 6]


def test_of_a_partition_that_is_held_nothing_is_coming(pair: Pair) -> None:
    subscriber, client = pair
    client.script.extend([client.assign, *brought(3, 4, 5, 6)])
    subscriber.poll(2, 0.0)
    subscriber.hold([(TOPIC, 0)], 60.0)
    assert (subscriber.coming(2), subscriber.poll(2, 0.0)) == ([], [])
