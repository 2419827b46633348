"""What may be concluded from who holds the lock, without a database."""

from infrastructure.gap_proof import GapProof, Holder

A, B, C = Holder(1, "3/10"), Holder(2, "4/10"), Holder(3, "5/10")
PREPARED, OTHER_PREPARED = Holder(None, "-1/700"), Holder(None, "-1/701")


def look(proof: GapProof, seen: int, *holders: Holder, after: int = 0) -> bool:
    return proof.look(after, seen, frozenset(holders))


def test_without_holders_everything_seen_is_settled() -> None:
    proof = GapProof()
    assert look(proof, 7)
    assert proof.settled == 7


def test_with_holders_nothing_is_settled() -> None:
    proof = GapProof()
    assert not look(proof, 7, A)
    assert proof.settled == 0


def test_the_holders_of_the_first_look_decide_however_many_come_later() -> None:
    proof = GapProof()
    look(proof, 7, A, B)
    assert not look(proof, 9, B, C)
    assert look(proof, 12, C)
    assert proof.settled == 7


def test_what_was_seen_later_is_settled_by_the_holders_of_the_look_that_settled_the_first() -> None:
    proof = GapProof()
    look(proof, 7, A)
    look(proof, 12, B)
    assert look(proof, 15, C)
    assert proof.settled == 12


def test_a_holder_that_is_being_prepared_is_still_awaited() -> None:
    proof = GapProof()
    look(proof, 7, A)
    assert not look(proof, 7, PREPARED)
    assert not look(proof, 7, PREPARED, B)
    assert look(proof, 7, B)


def test_prepared_transactions_that_come_later_are_not_awaited() -> None:
    proof = GapProof()
    look(proof, 7, A)
    look(proof, 7, PREPARED)
    assert look(proof, 7, OTHER_PREPARED)


def test_what_the_reader_has_passed_is_no_longer_awaited() -> None:
    """The gap was filled in the meantime; a new one has holders of its own."""
    proof = GapProof()
    look(proof, 7, A, B)
    assert not look(proof, 12, B, C, after=8)
    assert proof.awaited == {B, C}


def test_reading_elsewhere_settles_nothing_here() -> None:
    proof = GapProof()
    look(proof, 7, A)
    look(proof, 505, A, B, after=500)
    assert proof.settled == 0
    assert not look(proof, 7, A)


def test_it_remembers_no_more_however_many_gaps_it_sees() -> None:
    proof = GapProof()
    for seen in range(1, 100_000, 2):
        look(proof, seen, A)
    assert proof.awaited == {A}
