"""Values of other programs, and arguments of a wrong type, get errors that say what is wrong."""

from typing import Any

import pytest

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.recipes import Counter, Leader, Lock
from nyala.recipes.records import KEYS
from tests.unit.recipes.support.blocking import processes

DEEP = b"[" * 200_000


@processes
def test_key_of_an_election_with_deep_json_names_an_unknown_leader_and_is_replaced(p):
    journal = p.journal("one")
    journal.set(KEYS + "deep", DEEP)
    found = Leader.current(journal, "deep")
    assert found is not None
    assert (found.holder, found.locator) == ("", "")
    one = Leader(journal, "deep", holder="one", timeout_ms=500)
    assert one.wait(30)
    one.close()


@processes
def test_counter_whose_key_is_no_number_is_refused(p):
    journal = p.journal()
    for value in (b"1" * 5000, b"", b"0", b"-3", b"x", b"\xff", DEEP):
        journal.set("ids", value)
        with pytest.raises(Corrupt, match=r"'ids' has the value .*which is no number"):
            Counter(journal, "ids").next()
    count: Any
    for count in (0, -1, "5", True, 1.5, 1 << 40):
        with pytest.raises(InvalidArgument, match=r"give a number from 1"):
            Counter(journal, "other").next(count)


@processes
def test_times_that_are_no_numbers_are_refused(p):
    journal = p.journal("one")
    one = Leader(journal, "service", holder="one", timeout_ms=500)
    lock = Lock(journal, "l", holder="one")
    wrong: Any
    for wrong in ("5", -1, [], float("nan")):
        with pytest.raises(InvalidArgument, match=r"timeout_s=.*number of seconds"):
            one.wait(wrong)
        with pytest.raises(InvalidArgument, match=r"timeout_s=.*number of seconds"):
            lock.acquire(wrong)
    one.close()
