"""Makes system calls of a running process fail or wait, by strace, which needs root."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import wait_until, within

SYNCS = "fdatasync,fsync"
WRITES = "pwritev,pwritev2"


@contextlib.contextmanager
def injected(pid: int, calls: str, what: str, log: Path = Path("/dev/null")) -> Iterator[None]:
    """Change system calls of a process and its threads while the context is open.

    Args:
        pid: id of the process.
        calls: names of system calls: SYNCS, WRITES.
        what: an action of strace: "error=EIO", "error=EIO:when=5+", "delay_enter=300000".
        log: file with a line for each call, which begins with its thread id.
    """
    command = ["strace", "-f", "-qq", "-o", str(log), "-p", str(pid)]
    command += ["-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: strace.poll() is not None or _traced(pid), "strace is attached", 60)
        if strace.poll() is not None:
            raise AssertionError(f"strace ended: {strace.stderr.read() if strace.stderr else ''}")
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        try:
            strace.communicate(timeout=within(20))
        except subprocess.TimeoutExpired:
            strace.kill()
            strace.communicate()


def _traced(pid: int) -> bool:
    """Return whether every thread has a tracer."""
    tasks = list(Path(f"/proc/{pid}/task").glob("*/status"))
    return bool(tasks) and not any("TracerPid:\t0\n" in t.read_text() for t in tasks)
