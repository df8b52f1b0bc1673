"""Keys of the writes of a step, and the end of its keys."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotLeading
from nyala.spark.pipelines.driver import Turn
from nyala.spark.pipelines.step_run import StepRun

FIRST = "pipeline nightly run r1 step load write 1"


class Keys:
    """Transactions of a cluster: the first one with a key takes it.

    Attributes:
        taken: keys, in order.
    """

    masters = "m:1"

    def __init__(self) -> None:
        self.taken: list[str] = []

    @contextmanager
    def transaction(self, key):
        txn = SimpleNamespace(committed_before=False)
        yield txn
        txn.committed_before = key in self.taken
        if not txn.committed_before:
            self.taken.append(key)


def step_of(keys: Any, check=lambda: None, run="r1") -> StepRun:
    return StepRun(None, keys, "nightly", Turn(run, run, "load", {}, check))


def test_all_drivers_have_the_same_keys_in_a_run_and_others_in_the_next():
    one, two = step_of(Keys()), step_of(Keys())
    assert [one.key(), one.key()] == [two.key(), two.key()]
    assert step_of(Keys()).key() == FIRST
    assert step_of(Keys(), run="r2").key() != FIRST


def test_replaced_driver_gets_no_key():
    def replaced():
        raise NotLeading("another one leads")

    step = step_of(Keys(), replaced)
    with pytest.raises(NotLeading):
        step.key()
    with pytest.raises(NotLeading):
        step.check()
    with pytest.raises(NotLeading):
        step.write(None, "t")


def test_seal_takes_the_next_key_so_that_a_late_write_has_no_effect(capsys):
    keys = Keys()
    late, active = step_of(keys), step_of(keys)
    for step in (late, active):
        with keys.transaction(step.key()):
            pass
    under_way = late.key()
    active.seal()
    with keys.transaction(under_way) as txn:
        pass
    assert txn.committed_before
    assert len(keys.taken) == 2
    step_of(keys).seal()
    assert len(keys.taken) == 3
    assert "write 1 was made by an earlier driver only" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["job_id", "atomic"])
def test_options_that_the_step_sets_are_refused(name):
    with pytest.raises(InvalidArgument, match=f"option {name}: a step sets it"):
        step_of(Keys()).write(None, "t", **{name: "x"})
