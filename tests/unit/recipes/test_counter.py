"""Counter: numbers that are never given twice."""

import pytest

from nyala.client.journal.builder import StepBuilder
from nyala.client.journal.delivery import StepOutcome
from nyala.common.errors import ConditionFailed, Corrupt, InvalidArgument
from nyala.recipes import Counter
from nyala.recipes.records import MAX_NUMBER
from tests.unit.recipes.support.blocking import processes


@processes
def test_numbers_follow_each_other_over_all_processes(p):
    one, two = Counter(p.journal(), "ids"), Counter(p.journal(), "ids")
    found = [one.next(), two.next(3), one.next(), two.next()]
    assert found == [1, 2, 5, 6]
    assert Counter(p.journal(), "others").next() == 1


@processes
def test_of_two_steps_with_the_same_number_one_takes_effect(p):
    journals = p.journal(), p.journal()
    steps = [j.atomically() for j in journals]
    assert [Counter(j, "ids").take(s) for j, s in zip(journals, steps, strict=True)] == [1, 1]
    steps[1].send()
    with pytest.raises(ConditionFailed):
        steps[0].send()
    assert Counter(journals[0], "ids").next() == 2


@processes
def test_next_takes_another_number_when_a_process_was_faster(p):
    other = Counter(p.journal(), "ids")

    class Slow(Counter):
        tries = 0

        def take(self, step, count=1):
            found = super().take(step, count)
            self.tries += 1
            if self.tries <= 2:
                other.next(10)
            return found

    slow = Slow(p.journal(), "ids")
    assert slow.next() == 21
    assert (slow.tries, other.next()) == (3, 22)


@processes
def test_numbers_of_a_step_that_has_not_taken_effect_are_given_again(p):
    journal = p.journal()
    counter = Counter(journal, "ids")
    step = journal.atomically()
    step.require(key="absent", version=7)
    assert counter.take(step, 5) == 1
    with pytest.raises(ConditionFailed):
        step.send()
    assert counter.next() == 1


VALUES = [b"", b"0", b"-1", b"x", b"1 ", b"01", "\u0663".encode(), b"9" * 19, b"9" * 5000]


@pytest.mark.parametrize("value", VALUES)
def test_value_that_is_no_number_is_refused_and_kept(value):
    @processes
    def test(p):
        journal = p.journal()
        journal.set("ids", value)
        for call in (
            Counter(journal, "ids").next,
            lambda: Counter(journal, "ids").take(journal.atomically()),
        ):
            with pytest.raises(Corrupt, match=r"'ids' has the value .* another program has set it"):
                call()
        assert journal.get("ids").value == value

    test()


@processes
def test_last_numbers_are_given_and_none_after_them(p):
    journal = p.journal()
    journal.set("ids", b"%d" % (MAX_NUMBER - 1))
    counter = Counter(journal, "ids")
    with pytest.raises(InvalidArgument, match="counter 'ids' ends at"):
        counter.next(2)
    assert counter.next() == MAX_NUMBER - 1
    with pytest.raises(InvalidArgument, match="counter 'ids' ends at"):
        counter.next()


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "1", None, (1 << 32) + 1])
def test_count_out_of_range_is_refused(count):
    @processes
    def test(p):
        with pytest.raises(InvalidArgument, match="give a number from 1 to"):
            Counter(p.journal(), "ids").next(count)

    test()


@processes
def test_numbers_of_one_step_follow_each_other(p):
    journal = p.journal()
    counter, again = Counter(journal, "ids"), Counter(journal, "ids")
    with journal.atomically() as step:
        assert [counter.take(step), again.take(step, 3), counter.take(step)] == [1, 2, 5]
    assert again.next() == 6


@processes
def test_number_is_not_taken_in_a_step_of_another_journal(p):
    counter = Counter(p.journal(), "ids")
    step = StepBuilder(lambda *_: StepOutcome((), 0), "another")
    with pytest.raises(InvalidArgument, match="'ids' is of another journal than the step"):
        counter.take(step)
    assert step.parts == ([], [])
