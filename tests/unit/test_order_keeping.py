"""Of a batch: what is applied, what is parked, and what must wait in Kafka. No database."""

from projections.decoding import Category, Faulty
from projections.order_keeping import Found, Limits, Readable, Sorted, decide
from projections.quarantine import Parked, content_hash, key_hash
from tests.support.messages import cancelled, placed, readable, record

NOTHING = Found({}, frozenset(), frozenset(), 0)
ROOM = Limits()


def poison(key: bytes | None, topic: str = "orders.placed.v1", value: bytes = b"\xff") -> Parked:
    return Parked(record(value, key, topic=topic), Faulty(Category.NOT_JSON, "as the test wants it"))


def parked_before(key: bytes, many: int = 1) -> Found:
    return Found({key_hash(key): many}, frozenset(), frozenset(), many)


def ids(sorted_out: Sorted) -> list[str]:
    return [each.contract.event_id for each in sorted_out.apply]


def place_of(each: Readable | Parked) -> tuple[str, int, int, bytes]:
    return each.record.topic, each.record.partition, each.record.offset, content_hash(each.record)


def test_what_comes_after_a_culprit_is_parked_behind_it_and_what_came_before_is_applied() -> None:
    before, culprit, after = readable(placed("ord_1")), poison(b"ord_1"), readable(placed("ord_1"))
    other_topic, other_key = readable(cancelled("ord_1")), readable(placed("ord_2"))
    done = decide([before, culprit, after, other_topic, other_key], NOTHING, ROOM)
    assert done.apply == [before, other_key]
    assert [each.record for each in done.park] == [culprit.record, after.record, other_topic.record]
    assert [each.fault.category for each in done.park] == [Category.NOT_JSON, Category.FOLLOWER, Category.FOLLOWER]


def test_a_culprit_behind_others_of_its_key_says_itself_what_is_wrong_with_it() -> None:
    [parked] = decide([poison(b"ord_1")], parked_before(b"ord_1"), ROOM).park
    assert parked.fault.category == Category.NOT_JSON


def test_a_record_without_a_key_holds_nobody_back_and_one_with_an_empty_key_holds_its_like() -> None:
    after, empty = poison(None), poison(b"")
    done = decide([poison(None), after, empty, readable(placed("ord_1"))], NOTHING, ROOM)
    assert (len(done.park), len(done.apply)) == (3, 1)


def test_a_record_that_was_parked_before_is_neither_parked_nor_applied_nor_is_its_event_from_elsewhere() -> None:
    again, copy = readable(placed("ord_1")), readable(placed("ord_1"))
    found = Found({key_hash(b"ord_1"): 2}, frozenset({place_of(again)}), frozenset({copy.contract.event_id}), 2)
    assert decide([again, copy], found, ROOM) == Sorted()


def test_a_record_that_was_discarded_is_not_applied_and_nobody_waits_behind_it() -> None:
    discarded, after = readable(placed("ord_1")), readable(placed("ord_1"))
    done = decide([discarded, after], Found({}, frozenset({place_of(discarded)}), frozenset(), 0), ROOM)
    assert done == Sorted(apply=[after])


def test_an_event_that_was_applied_before_is_not_parked_when_it_comes_again_while_its_key_is() -> None:
    again = readable(placed("ord_1"))
    found = Found({key_hash(b"ord_1"): 1}, frozenset(), frozenset({again.contract.event_id}), 1)
    assert decide([again], found, ROOM) == Sorted()


def test_the_id_of_a_record_that_could_not_be_read_says_nothing_about_that_event() -> None:
    event = placed("ord_1")
    under_a_wrong_key = Parked(record(event.to_bytes(), b"ord_2"), Faulty(Category.KEY, "key", event.event_id))
    done = decide([under_a_wrong_key], Found({}, frozenset(), frozenset({event.event_id}), 0), ROOM)
    assert done.park == [under_a_wrong_key]


def test_what_a_full_key_has_no_room_for_waits_with_all_that_follows_in_its_partition() -> None:
    follower, behind = readable(placed("ord_1")), readable(placed("ord_2"))
    elsewhere = readable(cancelled("ord_2"))
    done = decide([follower, behind, elsewhere], parked_before(b"ord_1", many=3), Limits(per_key=3, total=100))
    assert (done.apply, done.park, done.waiting) == ([elsewhere], [], [follower.record, behind.record])


def test_a_full_quarantine_takes_nothing_more_of_any_key_and_what_needs_no_room_goes_on() -> None:
    first, second, good = poison(b"ord_1"), poison(b"ord_2", topic="elsewhere"), readable(placed("ord_3"))
    done = decide([first, good, second], NOTHING, Limits(per_key=3, total=1))
    assert (done.apply, done.park, done.waiting) == ([good], [first], [second.record])


def test_what_is_in_a_full_quarantine_already_needs_no_room_when_it_comes_again() -> None:
    again = poison(b"ord_1")
    found = Found({key_hash(b"ord_1"): 1}, frozenset({place_of(again)}), frozenset(), 1)
    assert decide([again], found, Limits(per_key=1, total=1)) == Sorted()
