"""Processes that tests leave: this process becomes the parent of orphans, finds them and kills them."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from tests.reporting import descendants

PR_SET_CHILD_SUBREAPER = 36
"""Number of the prctl that makes orphaned descendants children of this process."""
GRACE_S = 120.0
"""Time that orphans have to end by themselves: a virtual machine of Java, a pool of workers."""
TEST = b"PYTEST_CURRENT_TEST="


def adopt_orphans() -> None:
    """Make the orphans among the descendants of this process its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(keep: int) -> list[str]:
    """Kill children that do not end by themselves; return a text about each, with the test that started it.

    Args:
        keep: a child that is none of them.
    """
    end = time.monotonic() + GRACE_S
    while _orphans(keep) and time.monotonic() < end:
        time.sleep(0.1)
    found = []
    for pid in _orphans(keep):
        found.append(f"a process was left by {_test_of(pid)}: {_command(pid)}")
        kill_tree(pid)
    _orphans(keep)
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _orphans(keep: int) -> list[int]:
    """Return the adopted children that run; collect the ended ones."""
    running = []
    for pid in _children(os.getpid()):
        if pid == keep or pid in OWN:
            continue
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                running.append(pid)
    return running


OWN: set[int] = set()
"""Children of this process that are no orphans of tests."""


def _children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                == pid
            ):
                found.append(int(folder.name))
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:160]
        )
    return f"process {pid}"


def _test_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if part.startswith(TEST):
                return part[len(TEST) :].decode(errors="replace").partition(" (")[0]
    return "a test"
