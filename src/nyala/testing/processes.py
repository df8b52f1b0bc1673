"""Server processes of a local cluster: found by pid, stopped in order (`forkserver` starts them)."""

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
    """Return the file that names a server's process."""
    return server.dir + ".pid"


def write_pid_file(path: str, pid: int) -> None:
    """Remember a process: its pid and when it started, at once or not at all."""
    Path(path + ".new").write_text(f"{pid} {_started_at(pid)}\n")
    os.replace(path + ".new", path)


def _started_at(pid: int) -> str:
    """Return when a process started, in kernel ticks: with it, a pid names one process for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "?"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def running_pid(server: ServerSpec) -> int | None:
    """Return the pid of a server that runs, else None. Another process with that pid does not count."""
    try:
        pid_text, started = Path(pid_file(server)).read_text().split()
        pid = int(pid_text)
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    if started not in ("?", _started_at(pid)) or _state(pid) == "Z":
        return None
    return pid


def send(server: ServerSpec, what: signal.Signals) -> bool:
    """Send a signal to a server; False if it does not run."""
    pid = running_pid(server)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
    return True


def wait_gone(server: ServerSpec, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Wait until a server has ended; False when it did not in time."""
    deadline = time.monotonic() + timeout_s
    while running_pid(server) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def end(server: ServerSpec, how: signal.Signals) -> None:
    """End a server by a signal, and wait until it is gone.

    Raises:
        Unavailable: it does not run.
        TimedOut: it does not end.
    """
    if not send(server, how):
        raise Unavailable(f"{server.name} does not run")
    if not wait_gone(server, END_TIMEOUT_S):
        raise TimedOut(f"{server.name} still runs {END_TIMEOUT_S} s after {how.name}; see its log")


def stop(layout: Layout) -> list[str]:
    """Stop all servers, tablet servers first; return the names of those that ran."""
    stopped = []
    for role in ("tserver", "master"):
        asked = [s for s in layout.servers if s.role == role and send(s, signal.SIGTERM)]
        for server in asked:
            send(server, signal.SIGCONT)  # one that is paused would never hear of it
        for server in asked:
            if not wait_gone(server):
                send(server, signal.SIGKILL)
                wait_gone(server)
            stopped.append(server.name)
    return stopped


def last_lines(server: ServerSpec, count: int = 5) -> str:
    """Return the end of a server's log, for a message."""
    try:
        lines = Path(server.log).read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"    {line}" for line in lines[-count:]) or "(empty log)"


def require_running(layout: Layout, names: list[str]) -> None:
    """Raise with the end of its log if one of the servers has ended.

    Raises:
        Unavailable: naming the server and its last words.
    """
    for name in names:
        server = layout.server(name)
        if running_pid(server) is None:
            raise Unavailable(
                f"{name} has exited; the last lines of {server.log}:\n{last_lines(server)}"
            )
