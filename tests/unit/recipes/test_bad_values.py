"""Values of other programs, and arguments of a wrong type, get errors that say what is wrong."""

from typing import Any

import pytest

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.recipes import Counter, Leader, Lock, Operation, Operations
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


class Kind(Operation):
    """An operation whose methods return what the test gives."""

    kind = "kind"

    def __init__(self, payload: Any, objects: Any) -> None:
        self.payload, self.found = payload, objects

    def compute(self, request: Any) -> bytes:
        """See `Operation.compute`."""
        return self.payload  # type: ignore[no-any-return]

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""

    def objects(self, payload: bytes) -> Any:
        """See `Operation.objects`."""
        return self.found


@processes
def test_operation_that_returns_no_payload_or_no_names_is_refused_before_its_commit_point(p):
    wrong = [
        ("text", ["a"], "not bytes"),
        (None, ["a"], "not bytes"),
        (b"x", "name", "list"),
        (b"x", [1], "list"),
    ]
    journal = p.journal("one")
    for number, (payload, objects, said) in enumerate(wrong):
        leader = Leader(journal, f"log {number}", holder="one", timeout_ms=500)
        operations = Operations(leader, [Kind(payload, objects)], retract=list)
        leader.wait()
        operations.take_over()
        with pytest.raises(InvalidArgument, match=said):
            operations.execute("kind", None)
        assert [e.data[:5] for e in journal.log(leader.name).read()] == [b"leade"]
        assert operations.pending() == []
        operations.close()
        leader.close()
