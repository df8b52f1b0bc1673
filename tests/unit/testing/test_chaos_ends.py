"""`nyala chaos` ends its simulator at the second signal at the latest, and no ignored signal ends it."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.waiting import within

COMMAND = """
import signal, sys
from nyala.testing import chaos
signal.signal(signal.SIGHUP, signal.{at_hangup})
chaos.PROGRAM = "other_program"
sys.exit(chaos.run([]))
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("goes on", flush=True))
print("runs", flush=True)
while True:
    signal.pause()
"""
READER = "print('runs', flush=True); input(); raise SystemExit(3)"


@contextmanager
def command(folder, program, at_hangup="SIG_DFL"):
    (folder / "other_program.py").write_text(program)
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(at_hangup=at_hangup)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    ) as started:  # fmt: skip
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "runs\n"
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)]
)
def test_second_signal_kills_a_simulator_that_does_not_end(tmp_path, number, status):
    with command(tmp_path, STUBBORN) as started:
        started.send_signal(number)
        assert started.stdout.readline() == "goes on\n"
        started.send_signal(number)
        started.communicate(timeout=within(60))  # until no process has the pipes open
        assert started.returncode == status


def test_hangup_that_the_caller_ignores_does_not_end_the_run(tmp_path):
    with command(tmp_path, READER, at_hangup="SIG_IGN") as started:
        started.send_signal(signal.SIGHUP)
        started.communicate("\n", timeout=within(60))
        assert started.returncode == 3
