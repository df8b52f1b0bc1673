"""`nyala chaos`: stages and crash points of the design documents pass, and a failure is reported."""

import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from tests.sim.named import points, run
from tests.waiting import within

NAMED = [s for s in run.scenarios() if "/" not in s.name]


@pytest.mark.row("W3")
@pytest.mark.parametrize("scenario", NAMED, ids=[s.name for s in NAMED])
def test_scenario_of_a_design_document_passes(scenario):
    scenario.run()


def test_crash_points_are_those_of_the_coordinators_document():
    """Before the append, after it, after the actions, after the end."""
    names = [s.name for s in NAMED if s.name.startswith(("create_", "enlist_"))]
    assert names == ["create_1", "create_2", "create_3", "create_4", "enlist_1", "enlist_2"]
    assert points.crash_points("create") == [
        "before create_table intent",
        "after create_table intent",
        "after create_table action 0",
        "after create_table done",
    ]


def test_failed_scenario_is_reported_with_its_reason(monkeypatch, capsys):
    def fails():
        raise AssertionError("the effect is another one")

    broken = run.NamedScenario("t=1", "a document", "it breaks", fails)
    monkeypatch.setattr(run, "scenarios", lambda: iter([broken]))
    assert run.main(["run", "t="]) == 1
    printed = capsys.readouterr().out
    assert "FAILED t=1: it breaks" in printed
    assert "the effect is another one" in printed
    assert "1 scenarios, 1 failed" in printed
    assert run.main(["run", "t=2"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["t=1", "--seed", "1"],
        ["--minutes", "1"],
        ["--level", "host"],
        ["--level", "x"],
        ["--seed", "1", "--workers", "1000000"],
    ],
)
def test_options_that_do_not_belong_together_are_refused(words):
    assert CliRunner().invoke(app, ["chaos", "run", *words]).exit_code == 2


def test_empty_name_is_refused_and_does_not_run_all_scenarios(capsys):
    assert run.main(["run", "t=1", ""]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_signal_ends_the_simulator_and_its_workers_without_a_traceback(number, status):
    words = ["chaos", "run", "--seed", "5", "--level", "core", "--minutes", "9", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "nyala", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        assert "core seed 5" in command.stdout.readline()
        command.send_signal(number)
        _, errors = command.communicate(timeout=within(60))  # until no process has the pipes open
    assert command.returncode == status
    assert "Traceback" not in errors
