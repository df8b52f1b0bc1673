"""`./run bench`: runs named benchmarks only, and stops their processes on a signal."""

import signal
import subprocess
import sys

import pytest

from tests.waiting import within

BENCHMARK = """
import contextlib, signal, sys, types
from benchmarks import main

@contextlib.contextmanager
def cluster():
    try:
        yield
    finally:
        print("stopped", flush=True)

def run():
    with cluster():
        print("started", flush=True)
        while True:
            signal.pause()

sys.modules["benchmarks.fake"] = types.SimpleNamespace(run=run)
main.NAMES = ("fake",)
sys.exit(main.main(["fake"]))
"""


@pytest.mark.parametrize("words", [[], ["nothing"]])
def test_unknown_benchmark_lists_names_and_runs_nothing(words):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.main", *words],
        capture_output=True,
        text=True,
        timeout=within(180),
    )
    assert done.returncode == 2
    names = (
        "write, scan, lookups, small, store, failover, consensus, groups, group_commit, kudu, copy"
    )
    assert f"there are: {names}" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_processes_started_by_benchmark(number):
    running = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        running.send_signal(number)
        running.send_signal(number)  # a second signal leaves no process behind
        assert running.stdout.read() == "stopped\n"
    assert running.returncode == 128 + number
