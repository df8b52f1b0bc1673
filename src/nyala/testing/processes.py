"""Server processes of a local cluster: started apart from the terminal, found by pid, stopped in order."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nyala.common.errors import Unavailable
from nyala.testing.layout import Layout, ServerSpec

STOP_TIMEOUT_S = 15
READY = b"ready\n"
"""What the fork server prints when it has imported everything."""
# Arrow bodies come and go by the megabyte: without these, malloc maps and unmaps each of them.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "4",
}


class Job(msgspec.Struct, frozen=True):
    """A server to fork.

    Attributes:
        words: of its command line, after `nyala`.
        dir: the folder that it runs in.
        log: file that its output is appended to.
        pid_file: where its pid is written.
    """

    words: list[str]
    dir: str
    log: str
    pid_file: str


def _job(layout: Layout, server: ServerSpec) -> Job:
    words = [
        server.role, "run",
        "--dir", server.dir,
        "--address", server.address,
        "--peer-address", server.peer_address,
        "--web-address", server.web_address,
        "--master-addresses", layout.masters,
    ]  # fmt: skip
    for name, value in layout.options.items():
        words += ["--set", f"{name}={value}"]
    return Job(words, layout.dir, server.log, _pid_file(server))


def _pid_file(server: ServerSpec) -> str:
    return server.dir + ".pid"


def start(layout: Layout, servers: Sequence[ServerSpec]) -> None:
    """Start servers; their output goes to their log files. They outlive this process.

    When this is interrupted none of them runs, or each has its pid file.

    Raises:
        Unavailable: this installation cannot run a server; with what it says.
    """
    jobs = [_job(layout, s) for s in servers]
    for server in servers:
        Path(server.dir).parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-m", "nyala.cli.forkserver"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **MALLOC, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            ready = parent.stdout.readline() == READY
        except BaseException:  # an interruption: nothing has been forked yet
            parent.kill()
            raise
        said = parent.communicate(msgspec.json.encode(jobs) if ready else b"[]")[1]
    if parent.returncode != 0:
        raise Unavailable(f"no server can be started: {said.decode(errors='replace').strip()}")


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
        pid_text, started = Path(_pid_file(server)).read_text().split()
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
            raise Unavailable(f"{name} has ended; the end of {server.log}:\n{last_lines(server)}")
