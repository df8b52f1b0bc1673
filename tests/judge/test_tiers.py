"""scripts/test.py with planted failures: each is red, ends in time and is named in the last lines."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import test as tiers
from scripts.testrun import busy, leftovers, results, speed

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from scripts import test as tiers
from scripts.testrun import leftovers

kind, silent_s, *words = sys.argv[1:]
leftovers.GRACE_S, tiers.SILENT_S = 0.5, float(silent_s)
leftovers.adopt_orphans()
planted = tiers.Tier("planted", 1, (tiers.pytest(*words),), servers=kind == "servers")
rows = list(tiers.run_all([planted], 1.0, full=False))
print("LAST", *tiers.tell(rows), sep="\\n")
sys.exit(not rows[0][1].good)
"""
LIMIT_S = 120


def run(
    folder: Path, text: str, kind: str = "core", silent_s: float = LIMIT_S, words: tuple[str, ...] = ()
) -> tuple[int, list[str]]:  # fmt: skip
    """Run a tier of one file; return the exit status and the last lines."""
    (folder / "test_planted.py").write_text("import os, subprocess, sys\nimport pytest\n" + text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = full\n")
    command = [sys.executable, "-c", RUN, kind, str(silent_s), *words, "test_planted.py"]
    paths = f"{ROOT}:{ROOT / 'src'}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False, timeout=5 * LIMIT_S,
    )  # fmt: skip
    print(done.stdout)
    assert "LAST\n" in done.stdout, done.stdout + done.stderr
    return done.returncode, done.stdout.partition("LAST\n")[2].splitlines()


def failed(lines: list[str]) -> list[str]:
    """Return what the last forty lines call failed, without the folder."""
    return [line.removeprefix("FAILED ") for line in lines[-40:] if line.startswith("FAILED ")]


FLAKY = """
def test_second_time():
    before = os.path.exists("{mark}")
    open("{mark}", "w").close()
    assert before, "the first time"
"""


def test_flaky_test_of_servers_is_named_and_run_once_more(tmp_path):
    text = FLAKY.format(mark=tmp_path / "mark")
    status, lines = run(tmp_path, text, "servers")
    assert (status, failed(lines), lines[-1]) == (0, [], "1 passed, 0 failed")
    (flaky,) = (line for line in lines if line.startswith("FLAKY "))
    assert "test_planted.py::test_second_time: AssertionError: the first time" in flaky


def test_failed_test_without_servers_is_not_run_again(tmp_path):
    text = FLAKY.format(mark=tmp_path / "mark") + "def test_good(): pass\n"
    status, lines = run(tmp_path, text)
    assert (status, lines[-1]) == (1, "1 passed, 1 failed")
    assert [name.endswith("::test_second_time") for name in failed(lines)] == [True]
    assert "    AssertionError: the first time" in lines


@pytest.mark.full
def test_failing_test_of_servers_fails_twice(tmp_path):
    status, lines = run(tmp_path, "def test_wrong(): assert 1 == 2", "servers")
    assert (status, len(failed(lines))) == (1, 1)


@pytest.mark.full
def test_tier_without_selected_tests_is_good(tmp_path):
    status, lines = run(tmp_path, "@pytest.mark.full\ndef test_long(): assert False")
    assert (status, lines[-1]) == (0, "0 passed, 0 failed")


@pytest.mark.full
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import nothing_of_this_name\ndef test_one(): pass", "test_planted.py"),
        ("def test_ends(): os._exit(9)", "test_planted.py::test_ends"),
        (
            "@pytest.mark.timeout(1)\ndef test_hangs():\n    while True: pass",
            "test_planted.py::test_hangs",
        ),
    ],
)
def test_planted_failure_is_red_and_named(tmp_path, text, name, workers):
    status, lines = run(tmp_path, text + "\ndef test_good(): pass", words=workers)
    assert status == 1
    assert any(found.endswith(name) for found in failed(lines)), lines


@pytest.mark.full
def test_command_that_hangs_outside_of_limits_is_ended(tmp_path, capsys):
    text = """
import signal
def test_deaf():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True: pass
"""
    status, lines = run(tmp_path, text, silent_s=15)
    assert "test_deaf (test_planted.py" in capsys.readouterr().out.partition("stacks of proc")[2]
    assert status == 1
    assert any(name.endswith("test_planted.py::test_deaf") for name in failed(lines))
    assert any(tiers.SILENT in name for name in failed(lines))


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_test_that_no_signal_ends_is_ended_after_its_limit(tmp_path, words):
    (tmp_path / "conftest.py").write_text("from tests import reporting\nreporting.GRACE_S = 1.0")
    text = """
import signal
@pytest.mark.timeout(1)
def test_deaf():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True: pass
"""
    status, lines = run(tmp_path, text, words=words)
    assert status == 1
    assert any(name.endswith("test_planted.py::test_deaf") for name in failed(lines)), lines


@pytest.mark.full
def test_failed_test_has_the_last_warnings_of_its_servers(tmp_path):
    log = [
        f"2026-01-01 10:00:0{n},000 {level} nyala.a: line {n}" for n, level in enumerate("IWEIWWWW")
    ]
    text = f"""
def test_wrong(tmp_path):
    (tmp_path / "nyala-data").mkdir()
    (tmp_path / "nyala-data" / "tserver-0.log").write_text({chr(10).join(log)!r})
    assert 1 == 2
"""
    _, lines = run(tmp_path, text)
    assert [n for n in range(8) if f"    tserver-0.log: {log[n]}" in lines] == [2, 4, 5, 6, 7]


def test_failed_test_with_a_cluster_of_its_own_has_the_last_warnings_of_its_servers(tmp_path):
    text = """
def test_wrong():
    error = AssertionError("wrong")
    error.add_note("last warnings of the servers:\\ntserver-0.log: W nyala.a: full")
    raise error
"""
    _, lines = run(tmp_path, text)
    assert "    tserver-0.log: W nyala.a: full" in lines


def test_tests_do_not_depend_on_the_variables_of_the_caller(tmp_path, monkeypatch):
    odd = {
        "PYTEST_ADDOPTS": "--no-such",
        "PYTHONDONTWRITEBYTECODE": "1",  # each worker would compile all tests
        "HOME": "/no/such",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "no_SUCH",
    }
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    first = tiers.environment(1.0, False, tmp_path / "report")
    assert (first["TZ"], first["LC_ALL"]) == ("UTC", "C.UTF-8")
    assert not {"PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"} & first.keys()
    assert Path(first["HOME"]).is_dir()
    monkeypatch.delenv("HOME")
    assert Path(tiers.environment(1.0, False, tmp_path / "report")["HOME"]).is_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tiers.environment(1.0, False, tmp_path / "report")["HOME"] == str(tmp_path)


def test_load_ends_with_its_block_also_by_an_interrupt():
    with contextlib.suppress(KeyboardInterrupt), busy.load():
        before = set(leftovers.OWN)
        assert all(Path(f"/proc/{pid}").exists() for pid in before)
        signal.raise_signal(signal.SIGINT)
    assert len(before) == 5
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]


@pytest.mark.full
def test_process_that_a_test_leaves_is_ended_and_names_the_test(tmp_path):
    pid = tmp_path / "pid"
    text = f"""
def test_leaves():
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    os.set_inheritable(left.stdin.fileno(), True)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    left.kill()
    left.wait()
    open({str(pid)!r}, "w").write("x")
"""
    status, lines = run(tmp_path, text)
    (told,) = failed(lines)
    assert status == 1
    assert "a process was left by" in told
    assert told.endswith("test_planted.py::test_leaves: sleep 600 ")


@pytest.mark.full
def test_stacks_of_the_processes_of_a_hung_test_are_shown(tmp_path):
    text = """
@pytest.mark.timeout(10)
def test_waits_for_a_child():
    code = "def waits_for_ever():\\n    input()\\nprint('begun', flush=True)\\nwaits_for_ever()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        child.wait()
    finally:
        child.kill()
        child.wait()
"""
    (tmp_path / "test_planted.py").write_text("import subprocess, sys\nimport pytest\n" + text)
    done = subprocess.run(
        [*tiers.pytest(str(tmp_path))], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )  # fmt: skip
    assert "stacks of the processes of a late test" in done.stdout
    assert "waits_for_ever" in done.stdout.partition("stacks of the processes")[2]


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
    assert tiers.run(tiers.Tier("one", 1, both, together=True), 1.0, full=False).good
    printed = capfd.readouterr().out
    assert printed.index("met a") < printed.index("met b")
    broken = ((sys.executable, "-c", "print('a.py:7: wrong'); raise SystemExit(3)"), *both)
    result = tiers.run(tiers.Tier("one", 1, broken, together=True), 1.0, full=False)
    assert not result.good
    assert result.other[0].startswith("exit status 3: ")
    lines = tiers.tell([(tiers.TIERS[0], result)])
    assert lines[-2:] == ["    a.py:7: wrong", "0 passed, 0 failed"]


def test_servers_of_one_test_at_a_time_run_on_a_slow_machine():
    for one in tiers.TIERS:
        slow, usual = (" ".join(c for cs in one.commands_on(f) for c in cs) for f in (9.0, 1.0))
        assert ("-n 1" in slow) == one.servers, one.name
        assert slow.replace("-n 1", "-n 2") == usual
    assert {t.name for t in tiers.TIERS if t.servers} == {"cluster", "faults", "spark", "docs"}


def test_last_lines_name_every_failed_test_that_fits():
    error = [f"line {n}" for n in range(6)]
    for count in (1, 5, 30, 200):
        seen = results.Seen(failed={f"test_{n}": error for n in range(count)})
        lines = tiers.tell([(tiers.TIERS[0], tiers.Result(good=False, seen=seen))])[-40:]
        assert len(failed(lines)) == min(count, tiers.LAST_LINES - 4)
        assert ("and 168 further failed tests" in lines) == (count == 200)
        assert lines[-1] == f"0 passed, {count} failed"


def test_factor_of_deadlines_is_bounded(monkeypatch):
    assert 1.0 <= speed.slowness() <= speed.MOST
    monkeypatch.setattr(speed, "REFERENCE_LOOP_S", 1e-9)
    assert speed.slowness() == speed.MOST
