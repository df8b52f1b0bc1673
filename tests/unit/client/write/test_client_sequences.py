"""Numbers of operations per tablet, and which of them are still outstanding."""

import pytest

from nyala.client.write import sequencer
from nyala.client.write.sequencer import Sequences
from nyala.common.ids import TabletId

A, B = TabletId("a" * 32), TabletId("b" * 32)


def test_sequence_numbers_start_at_one_per_tablet():
    numbers = Sequences(keep_results=False)
    assert numbers.begin(A) == (1, 1)
    assert numbers.begin(B) == (1, 1)


@pytest.mark.row("A8")
def test_first_outstanding_is_oldest_unanswered_sequence():
    numbers = Sequences(keep_results=False)
    first, second = numbers.begin(A)[0], numbers.begin(A)[0]
    assert numbers.begin(A) == (3, first)
    numbers.end(A, second)
    assert numbers.begin(A) == (4, first), "the oldest operation is still outstanding"
    numbers.end(A, first)
    assert numbers.begin(A) == (5, 3)


def test_repeatable_client_acknowledges_no_result():
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


def test_idle_tablet_continues_above_all_forgotten_sequences(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sequencer, "TABLETS", 2)
    numbers = Sequences(keep_results=False)
    first, second, third, fourth = TABLETS
    assert use(numbers, first, 7) == 7
    assert use(numbers, second, 3) == 3
    assert use(numbers, first) == 8
    assert use(numbers, third) == 1, "no sequences were dropped yet"
    assert use(numbers, first) == 9, "A was used after B"
    assert use(numbers, second) == 4, "B continues above its own sequences"
    assert use(numbers, fourth, 2) == 5
    assert use(numbers, third) == 10
    assert use(numbers, first) == 10, "the tablet continues above its dropped sequences"


def test_tablet_with_pending_operation_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequencer, "TABLETS", 1)
    numbers = Sequences(keep_results=False)
    assert numbers.begin(A) == (1, 1)
    for tablet in TABLETS:
        use(numbers, tablet, 5)
    assert numbers.begin(A) == (2, 1)
    numbers.end(A, 1)
    numbers.end(A, 1)
    assert numbers.begin(A) == (3, 2)


def test_repeatable_client_forgets_no_sequence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequencer, "TABLETS", 1)
    numbers = Sequences(keep_results=True)
    assert [use(numbers, tablet, 5) for tablet in TABLETS] == [5] * 4
    assert [use(numbers, tablet) for tablet in TABLETS] == [6] * 4
