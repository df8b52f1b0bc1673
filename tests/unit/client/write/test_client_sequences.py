"""Numbers of operations per tablet, and which of them are still outstanding."""

import pytest

from nyala.client.write import sequencer
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


TABLETS = [TabletId(f"{n:032x}") for n in range(4)]


def use(numbers: Sequences, tablet: TabletId, times: int = 1) -> int:
    """Number some operations of a tablet and end them; return the last number."""
    for _ in range(times):
        number, _ = numbers.begin(tablet)
        numbers.end(tablet, number)
    return number


def test_a_tablet_that_was_not_used_for_long_goes_on_above_all_forgotten_numbers(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sequencer, "TABLETS", 2)
    numbers = Sequences(keep_results=False)
    first, second, third, fourth = TABLETS
    assert use(numbers, first, 7) == 7
    assert use(numbers, second, 3) == 3
    assert use(numbers, first) == 8
    assert use(numbers, third) == 1, "nothing is forgotten yet"
    assert use(numbers, first) == 9, "used later than the second"
    assert use(numbers, second) == 4, "above its own numbers"
    assert use(numbers, fourth, 2) == 5
    assert use(numbers, third) == 10
    assert use(numbers, first) == 10, "above all numbers that it had"


def test_a_tablet_with_an_operation_under_way_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequencer, "TABLETS", 1)
    numbers = Sequences(keep_results=False)
    assert numbers.begin(A) == (1, 1)
    for tablet in TABLETS:
        use(numbers, tablet, 5)
    assert numbers.begin(A) == (2, 1)
    numbers.end(A, 1)
    numbers.end(A, 1)
    assert numbers.begin(A) == (3, 2)


def test_a_client_that_may_be_repeated_forgets_no_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequencer, "TABLETS", 1)
    numbers = Sequences(keep_results=True)
    assert [use(numbers, tablet, 5) for tablet in TABLETS] == [5] * 4
    assert [use(numbers, tablet) for tablet in TABLETS] == [6] * 4
