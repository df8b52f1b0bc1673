"""Numbers of operations per tablet, and which of them are still outstanding."""

from nyala.client.write.sequencer import Sequences
from nyala.common.ids import TabletId

A, B = TabletId("a" * 32), TabletId("b" * 32)


def test_each_tablet_counts_by_itself_from_one():
    numbers = Sequences(keep_results=False)
    assert numbers.begin(A) == (1, 1)
    assert numbers.begin(B) == (1, 1)


def test_the_first_outstanding_is_the_oldest_that_is_not_answered():
    numbers = Sequences(keep_results=False)
    first, second = numbers.begin(A)[0], numbers.begin(A)[0]
    assert numbers.begin(A) == (3, first)
    numbers.end(A, second)
    assert numbers.begin(A) == (4, first), "the oldest is still under way"
    numbers.end(A, first)
    assert numbers.begin(A) == (5, 3)


def test_a_client_that_may_be_repeated_lets_no_result_go():
    numbers = Sequences(keep_results=True)
    for _ in range(3):
        numbers.end(A, numbers.begin(A)[0])
    assert numbers.begin(A) == (4, 1)
