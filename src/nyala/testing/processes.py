"""Server processes of a local cluster: found by pid file, stopped in order (`forkserver` starts them)."""

import contextlib
import os
import signal
import time
from pathlib import Path

from nyala.common.errors import TimedOut, Unavailable
from nyala.testing.layout import Layout, ServerSpec

STOP_TIMEOUT_S = 15
END_TIMEOUT_S = 60


def pid_file(server: ServerSpec) -> str:
    """Return the path of a server's pid file."""
    return server.dir + ".pid"


def write_pid_file(path: str, pid: int) -> None:
    """Write the pid and start time of a process, atomically."""
    Path(path + ".new").write_text(f"{pid} {_started_at(pid)}\n")
    os.replace(path + ".new", path)


def _started_at(pid: int) -> str:
    """Return the start time of a process, in kernel ticks; with it a pid is unique."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "?"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def _exited(pid: int) -> bool:
    """Return True if no thread of a process is left.

    The main thread of a killed process may exit first; until the last thread has, its files are open and
    locked, and a server that starts on the same directory is refused.
    """
    if _state(pid) != "Z":
        return False
    try:
        return os.listdir(f"/proc/{pid}/task") == [str(pid)]
    except OSError:
        return True


def running_pid(server: ServerSpec) -> int | None:
    """Return the pid of a running server, or None, also if another process has its pid."""
    try:
        pid_text, started = Path(pid_file(server)).read_text().split()
        pid = int(pid_text)
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    if started not in ("?", _started_at(pid)) or _exited(pid):
        return None
    return pid


def send(server: ServerSpec, what: signal.Signals) -> bool:
    """Send a signal to a server; return False if it does not run."""
    pid = running_pid(server)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
    return True


def wait_exited(server: ServerSpec, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Wait until a server has exited; return False after the time-out."""
    deadline = time.monotonic() + timeout_s
    while running_pid(server) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def end(server: ServerSpec, how: signal.Signals) -> None:
    """Send a signal to a server, and wait until it has exited.

    Raises:
        Unavailable: it does not run.
        TimedOut: it does not exit.
    """
    if not send(server, how):
        raise Unavailable(f"{server.name} does not run")
    if not wait_exited(server, END_TIMEOUT_S):
        raise TimedOut(f"{server.name} still runs {END_TIMEOUT_S} s after {how.name}; see its log")


def stop(layout: Layout) -> list[str]:
    """Stop all servers, tablet servers first; return the names of those that were running."""
    stopped = []
    for role in ("tserver", "master"):
        asked = [s for s in layout.servers if s.role == role and send(s, signal.SIGTERM)]
        for server in asked:
            send(server, signal.SIGCONT)  # a paused process handles no SIGTERM
        for server in asked:
            if not wait_exited(server):
                send(server, signal.SIGKILL)
                wait_exited(server)
            stopped.append(server.name)
    return stopped


def last_lines(server: ServerSpec, count: int = 5) -> str:
    """Return the end of a server's log, for an error message."""
    try:
        lines = Path(server.log).read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"    {line}" for line in lines[-count:]) or "(empty log)"


def require_running(layout: Layout, names: list[str]) -> None:
    """Check that no server has exited.

    Raises:
        Unavailable: a server has exited; with its name and the end of its log.
    """
    for name in names:
        server = layout.server(name)
        if running_pid(server) is None:
            raise Unavailable(
                f"{name} has exited; the last lines of {server.log}:\n{last_lines(server)}"
            )
