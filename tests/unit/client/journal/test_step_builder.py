"""Arguments of a step: invalid ones are refused before anything is sent."""

import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nyala.client.journal.builder import StepBuilder
from nyala.client.journal.delivery import StepOutcome
from nyala.client.journal.log import Log
from nyala.client.journal.pages import LogReader
from nyala.common.errors import InvalidArgument, TooLarge
from nyala.journal import steps


class Handle:
    """A log, as handles name it."""

    def __init__(self, journal_id: str) -> None:
        self.name = "a"
        self.journal_id = journal_id


def refused(*args: Any) -> Any:
    raise AssertionError(f"sent {args}")


@pytest.fixture
def step() -> StepBuilder:
    return StepBuilder(refused, "ours")


@pytest.mark.parametrize("method", ["append", "invalidate", "delete_log", "require"])
def test_log_of_another_journal_is_refused(step, method):
    wanted: dict[str, Any] = {
        "append": {"data": b""}, "invalidate": {"ids": [1]}, "delete_log": {}, "require": {"last": 0}
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="log 'a' is of another journal"):
        getattr(step, method)(Handle("theirs"), **wanted[method])
    getattr(step, method)(Handle("ours"), **wanted[method])
    getattr(step, method)("a", **wanted[method])


@pytest.mark.parametrize("log", [Path("/some/file"), 5, b"a", None])
def test_value_that_is_no_log_is_refused(step, log):
    with pytest.raises(InvalidArgument, match="give a log of this journal, or its name"):
        step.append(log, b"")


def test_large_data_are_refused_without_being_copied(step):
    step.append("a", bytes(steps.MAX_ENTRY_BYTES))
    with pytest.raises(TooLarge, match="1048577 bytes and may have 1048576"):
        step.append("a", bytes(steps.MAX_ENTRY_BYTES + 1))
    step.set("k", bytes(steps.MAX_VALUE_BYTES))
    with pytest.raises(TooLarge, match="262145 bytes and may have 262144"):
        step.set("k", bytes(steps.MAX_VALUE_BYTES + 1))
    wide = memoryview(bytes(4 * steps.MAX_VALUE_BYTES)).cast("Q")
    with pytest.raises(TooLarge, match="1048576 bytes and may have 262144"):
        step.set("k", wide)


def test_step_with_too_much_data_is_refused_while_it_is_built(step):
    for _ in range(steps.MAX_STEP_BYTES // steps.MAX_ENTRY_BYTES):
        step.append("a", bytes(steps.MAX_ENTRY_BYTES))
    with pytest.raises(TooLarge, match="the step has over 4194304 bytes"):
        step.append("a", b"x")


def test_endless_ids_are_refused(step):
    step.append("a", b"", range(steps.MAX_INVALIDATED))
    with pytest.raises(InvalidArgument, match="over 10000 ids"):
        step.append("a", b"", itertools.count())


def test_step_of_too_many_parts_is_refused_while_it_is_built(step):
    for _ in range(steps.MAX_STEP_CHANGES):
        step.delete("k")
        step.require(key="k", version=0)
    with pytest.raises(InvalidArgument, match="may have 64 changes"):
        step.delete("k")
    with pytest.raises(InvalidArgument, match="may have 64 conditions"):
        step.require(key="k", version=0)


def test_step_is_sent_once():
    sent: list[int] = []

    def send(conditions: Any, changes: Any) -> StepOutcome:
        sent.append(len(changes))
        return StepOutcome((7,), 7)

    step = StepBuilder(send, "ours")
    step.delete("k")
    step.send()
    with pytest.raises(InvalidArgument, match="was sent"):
        step.send()
    assert (sent, step.ids) == ([1], (7,))


def test_handle_that_had_read_nothing_reads_nothing_after_it_deleted_its_log():
    reader = LogReader(None, None, "a")  # type: ignore[arg-type]
    log = Log(None, None, reader, lambda: StepBuilder(lambda *_: StepOutcome((7,), 7), "ours"))  # type: ignore[arg-type]
    with mock.patch.object(Log, "journal_id", "ours"):
        assert log.delete() == 7
    assert reader.created == 7, "no log has this id"
