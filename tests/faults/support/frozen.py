"""Stops processes before their next instruction, as the first effect of a power failure."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import wait_until


def freeze(pids: Sequence[int]) -> None:
    """Stop processes with all their threads.

    A system call in progress may still end, but its result is not seen: an `fsync` during the power failure
    may wrongly return success (the commit that it waits for was dropped by another thread's), which no
    program sees on a machine without power.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(map(_stopped, pids)), f"processes {pids} stop", 60, poll_s=0.0005)


def _stopped(pid: int) -> bool:
    """Return whether no thread can run: each is stopped (T), or will be after its system call (D)."""
    try:
        stats = [p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread or the process ended meanwhile
        return not Path(f"/proc/{pid}").exists()
    return all(s.rpartition(")")[2].split()[0] in "TtDZX" for s in stats)
