"""A server runs until its last thread has exited: until then the kernel holds its lock and its files."""

import platform
import subprocess
import sys

from nyala.testing import processes
from nyala.testing.layout import ServerSpec
from tests.waiting import wait_until

LEADER_EXITS = """
import ctypes, os, sys, threading
wait = threading.Thread(target=sys.stdin.buffer.read)  # until the test closes its end
wait.start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({exit_call}, 0)  # ends the main thread alone, as a signal may end it first
"""
EXIT_CALLS = {"x86_64": 60, "aarch64": 93}


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_process_with_dead_main_thread_and_live_thread_still_runs(tmp_path):
    server = ServerSpec("tserver-0", "tserver", str(tmp_path / "tserver-0"), "", "", "")
    words = [sys.executable, "-c", LEADER_EXITS.format(exit_call=EXIT_CALLS[platform.machine()])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        processes.write_pid_file(processes.pid_file(server), process.pid)
        wait_until(lambda: state(process.pid) == "Z", "the main thread has exited")
        assert processes.running_pid(server) == process.pid
        process.stdin.close()
        wait_until(lambda: processes.running_pid(server) is None, "the last thread has exited")
