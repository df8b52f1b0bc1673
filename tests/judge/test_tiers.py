"""Tiers of `./run test` on a slow machine: tests that do not start in time are counted and not run."""

import sys
import time
from pathlib import Path

import pytest

from scripts import test as tiers

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.fixture(scope="module", autouse=True)
def cluster():
    open("{started}", "a").write("once ")

def test_first(): pass
def test_second(): pass
"""


def tier(folder: Path, text: str, *args: str) -> tiers.Tier:
    """Return a tier of one file, which uses the setup of all tests."""
    (folder / "test_one.py").write_text(text.format(started=folder / "started"))
    setup = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.conftest import *"
    (folder / "conftest.py").write_text(setup)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args, str(folder))
    return tiers.Tier("one", 1, 1, (command,))


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_tests_after_the_end_of_the_tier_are_counted(tmp_path, workers):
    late = tiers.run(tier(tmp_path, TESTS, *workers), 9.0, time.time() - 1)
    assert (late.good, late.left) == (True, 2)
    assert not (tmp_path / "started").exists(), "no fixture of a test that is not run"


def test_all_tests_run_without_an_end(tmp_path):
    on_time = tiers.run(tier(tmp_path, TESTS), 9.0, None)
    assert (on_time.good, on_time.left) == (True, 0)
    assert (tmp_path / "started").read_text() == "once "


def test_failure_before_the_end_fails_the_tier(tmp_path):
    failing = tier(tmp_path, TESTS + "def test_third(): assert False")
    assert not tiers.run(failing, 9.0, time.time() + 600).good


MEET = """
import pathlib, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
mine.touch()
end = time.monotonic() + 120
while not other.exists() and time.monotonic() < end:
    time.sleep(0.01)
print("met", mine.name) if other.exists() else sys.exit(1)
"""


def test_commands_that_run_together_print_in_order_and_fail_the_tier_if_one_fails(tmp_path, capfd):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both = tuple((sys.executable, "-c", MEET, *paths) for paths in ((a, b), (b, a)))
    assert tiers.run(tiers.Tier("one", 1, 1, both, together=True), 1.0, None).good
    printed = capfd.readouterr().out
    assert printed.index("met a") < printed.index("met b")
    broken = ((sys.executable, "-c", "raise SystemExit(3)"), *both)
    assert not tiers.run(tiers.Tier("one", 1, 1, broken, together=True), 1.0, None).good


def test_each_tier_gets_its_part_of_the_remaining_time(monkeypatch):
    ends = []

    def run(_tier: tiers.Tier, _slower: float, end: float | None) -> tiers.Result:
        ends.append(None if end is None else round(end - time.time()))
        return tiers.Result(True, 1.0, 0)

    monkeypatch.setattr(tiers, "run", run)
    one, two = tiers.Tier("one", 1, 100, ()), tiers.Tier("two", 1, 300, ())
    tiers.run_all([one, two], 9.0, time.time() + 1000)
    tiers.run_all([tiers.Tier("all", 1, 100, (), whole=True), one], 9.0, time.time() + 1000)
    tiers.run_all([one], 1.0, None)
    assert ends == [250, 1000, None, 1000, None]


def test_servers_of_one_test_at_a_time_run_on_a_slow_machine():
    for one in tiers.TIERS:
        slow, usual = (" ".join(c for cs in one.commands_on(f) for c in cs) for f in (9.0, 1.0))
        assert ("-n 1" in slow) == one.servers, one.name
        assert slow.replace("-n 1", "-n 2") == usual
    assert {t.name for t in tiers.TIERS if t.servers} == {"cluster", "faults", "spark", "docs"}
