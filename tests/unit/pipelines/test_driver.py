"""Drivers of a pipeline on virtual time: the ledger, crashes at each point, stand-by drivers, refusals."""

import json

import pytest

from nyala.common.errors import InvalidArgument, NotLeading, Unavailable
from nyala.spark.pipelines.driver import Driver, DriverSettings, PipelineRun, check_names
from nyala.spark.pipelines.ledger import Ledger, RunState, checked_result, read_state
from tests.unit.recipes.support.blocking import processes

STEPS = ("load", "merge", "report")
LOG = "pipeline/nightly"


Effect = tuple[str, str]


class Crash(BaseException):
    """The process ends here."""


class Process:
    """A process with a driver, whose steps append their names to a list that all processes share.

    Attributes:
        effects: (run, step) of each performed step.
        said: reports.
    """

    def __init__(self, p, name, effects, **settings):
        self._p, self._name = p, name
        self.effects = effects
        self.said = []
        self.at = {}
        self.keys = set()
        self.steps = settings.pop("steps", STEPS)
        self._settings = DriverSettings("nightly", name, **settings)
        self.journal = p.journal(name)

    def perform(self, turn):
        assert list(turn.results) == [s for s in self.steps if s in turn.results]
        self.at.get(f"before {turn.step}", lambda: None)()
        turn.check()
        self.keys.add(turn.keys)
        self.effects.append((turn.run, turn.step))
        self.at.get(f"after {turn.step}", lambda: None)()
        return len(turn.results)

    def run(self):
        made = Driver(self.journal, self._settings, self.steps, self.perform, self.said.append)
        return made.run()

    def crash(self):
        """End the process; its candidate sends nothing more to the journal."""
        self._p.candidates.links[self._name].cut = True
        self._p.crash(self._name)
        raise Crash


def state_of(p) -> RunState:
    found = read_state(p.journal(), LOG)
    assert found is not None
    return found


def done_entries(p) -> list[bytes]:
    return [entry for entry in p.candidates.entries(LOG) if entry.startswith(b"done")]


def steps_of(effects):
    return [step for _, step in effects]


@processes
def test_run_performs_each_step_once_and_the_next_run_begins_anew(p):
    effects: list[Effect] = []
    first = Process(p, "one", effects).run()
    assert first.results == {"load": 0, "merge": 1, "report": 2}
    assert first.own_steps == list(STEPS)
    second = Process(p, "two", effects).run()
    assert second.id != first.id
    assert steps_of(effects) == [*STEPS, *STEPS]
    state = state_of(p)
    assert (state.id, state.ended, state.done) == (second.id, True, second.results)
    assert len(done_entries(p)) == 1 + len(STEPS)
    third = Process(p, "three", effects)
    third.at["before load"] = third.crash
    with pytest.raises(Crash):
        third.run()
    assert len(done_entries(p)) == 1


@processes
def test_run_with_an_id_is_not_repeated(p):
    effects: list[Effect] = []
    first = Process(p, "one", effects, run="2026-11-28").run()
    again = Process(p, "two", effects, run="2026-11-28").run()
    assert (again.id, again.results, again.own_steps) == (first.id, first.results, [])
    assert Process(p, "three", effects, run="2026-11-29").run().own_steps == list(STEPS)
    assert steps_of(effects) == [*STEPS, *STEPS]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("standby", [False, True])
def test_driver_continues_from_the_last_done_step_of_one_that_crashed(step, place, standby):
    @processes
    def crash(p):
        effects: list[Effect] = []
        one = Process(p, "one", effects)
        one.at[f"{place} {step}"] = one.crash
        with pytest.raises(Crash):
            one.run()
        two = Process(p, "two", effects, standby=standby)
        began = p.now_s
        done = two.run()
        assert p.now_s - began < 12
        left = STEPS.index(step)
        assert done.own_steps == list(STEPS[left:])
        assert done.results == {"load": 0, "merge": 1, "report": 2}
        repeated = [step] if place == "after" else []
        assert steps_of(effects) == [*STEPS[:left], *repeated, *STEPS[left:]]
        assert len({run for run, _ in effects}) == 1

    crash()


@processes
def test_replaced_driver_adds_nothing_and_returns_what_the_other_has_done(p):
    effects: list[Effect] = []
    found: list[PipelineRun] = []
    one, two = (Process(p, name, effects, standby=True) for name in ("one", "two"))

    def cut_off():
        p.candidates.links["one"].cut = True
        found.append(two.run())
        p.candidates.links["one"].cut = False
        one.at.clear()

    one.at["after merge"] = cut_off
    done = one.run()
    assert found[0].own_steps == ["merge", "report"]
    assert (done.id, done.results, done.own_steps) == (found[0].id, found[0].results, [])
    assert steps_of(effects) == ["load", "merge", "merge", "report"]
    assert state_of(p).ended
    assert any("another driver may be active" in line for line in one.said)


@processes
def test_replaced_driver_that_does_not_stand_by_ends(p):
    effects: list[Effect] = []
    one, two = Process(p, "one", effects), Process(p, "two", effects, standby=True)

    def cut_off():
        p.candidates.links["one"].cut = True
        two.run()
        p.candidates.links["one"].cut = False
        raise RuntimeError("interrupted")

    one.at["before merge"] = cut_off
    with pytest.raises(NotLeading, match="step 'merge' has ended here with RuntimeError"):
        one.run()
    assert steps_of(effects) == list(STEPS)


@processes
def test_second_driver_is_refused_while_one_is_active(p):
    effects: list[Effect] = []
    one, two = Process(p, "one", effects), Process(p, "two", effects)

    def other():
        with pytest.raises(Unavailable, match=r"'nightly' is run by one; .* \(--standby\)"):
            two.run()

    one.at["before merge"] = other
    assert one.run().own_steps == list(STEPS)
    assert steps_of(effects) == list(STEPS)


@processes
def test_step_that_raises_ends_the_driver_and_is_tried_again_by_the_next(p):
    effects: list[Effect] = []
    one = Process(p, "one", effects)

    def fail():
        raise ValueError("bad input")

    one.at["before merge"] = fail
    with pytest.raises(ValueError, match="bad input"):
        one.run()
    assert Process(p, "two", effects).run().own_steps == ["merge", "report"]


@processes
def test_other_run_and_other_steps_are_refused_while_one_is_under_way(p):
    effects: list[Effect] = []
    one = Process(p, "one", effects, run="a")
    one.at["after load"] = one.crash
    with pytest.raises(Crash):
        one.run()
    with pytest.raises(InvalidArgument, match="run 'a' of pipeline 'nightly' is under way"):
        Process(p, "two", effects, run="b").run()
    with pytest.raises(InvalidArgument, match="begun with the steps load, merge, report, and this"):
        Process(p, "three", effects, steps=("load", "other")).run()
    done = Process(p, "four", effects, steps=("load", "other"), anew=True).run()
    assert done.own_steps == ["load", "other"]
    assert steps_of(effects) == ["load", "load", "other"]


@processes
def test_run_that_is_begun_anew_has_other_keys(p):
    effects: list[Effect] = []
    keys = []
    for name, anew in (("one", False), ("two", True)):
        process = Process(p, name, effects, run="a", anew=anew)
        assert process.run().own_steps == list(STEPS)
        keys.append(state_of(p).keys)
        assert process.keys == {keys[-1]}
    assert keys[0] == "a"
    assert keys[1].startswith("a~")


@pytest.mark.parametrize(
    ("pipeline", "steps", "message"),
    [
        ("a b", STEPS, "pipeline 'a b': a name has 1 to 56"),
        ("x" * 57, STEPS, "a name has 1 to 56"),
        ("a", ("load", "load"), "two steps 'load'"),
        ("a", ("a/b",), "step 'a/b'"),
        ("a", (), "has no steps"),
    ],
)
def test_names_are_checked(pipeline, steps, message):
    with pytest.raises(InvalidArgument, match=message):
        check_names(pipeline, steps, "")
    with pytest.raises(InvalidArgument, match="run 'a b'"):
        check_names("p", STEPS, "a b")


def test_results_must_be_json_of_a_limited_size():
    assert checked_result("s", {"rows": (1, 2)}) == {"rows": [1, 2]}
    with pytest.raises(InvalidArgument, match="step 's' returned a set"):
        checked_result("s", {1})
    with pytest.raises(InvalidArgument, match="write them to a table"):
        checked_result("s", "x" * 100_000)


def test_ledger_knows_the_steps_of_its_run_only():
    ledger = Ledger()
    assert ledger.state is None
    begin, step, _ = ledger.operations
    begin.apply(json.dumps({"id": "b", "keys": "c", "steps": ["load"], "ended": False}).encode())
    for run, result in (("a", 1), ("b", 2)):
        step.apply(json.dumps({"run": run, "step": run, "result": result}).encode())
    assert ledger.state == RunState("b", "c", ("load",), False, {"b": 2})
    ledger.retract("run")
    assert ledger.state is None
