"""Starts local servers by forking a process that has done the imports.

Imports and compiled kernels cost a server about two seconds of CPU: six seconds for six servers on two cores,
and two for each restart. The parent process (`nyala.cli.forkserver`) never opens an event loop, a channel or
a lane; Arrow's allocator and numpy's thread pool handle forks themselves.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from nyala.common.errors import Unavailable
from nyala.security.files import joined_files
from nyala.testing.layout import Layout, ServerSpec
from nyala.testing.processes import pid_file
from nyala.wire.tls.versions import require_tls13

READY = b"ready\n"
"""Line that the parent prints when its imports are done, and after each line of jobs."""
# Arrow bodies are megabytes large: without these, malloc maps and unmaps each of them, Arrow's own
# pool frees memory that it needs again at once, and every 4 KiB of new memory cost a page fault.
MALLOC = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "4",
}


class Job(msgspec.Struct, frozen=True):
    """A server to fork.

    Attributes:
        words: arguments of `nyala`.
        dir: working directory.
        log: file that its output is appended to.
        pid_file: path of its pid file.
        bound: the kernel kills the server when the process that forked it ends.
    """

    words: list[str]
    dir: str
    log: str
    pid_file: str
    bound: bool


class ForkServer:
    """Parent process of servers, created at the first start; it ends with this process.

    Args:
        bound: its servers end with it, also if this process is killed; by default they continue after that.
    """

    def __init__(self, *, bound: bool = False) -> None:
        self._bound = bound
        self._parent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, layout: Layout, servers: Sequence[ServerSpec]) -> None:
        """Start servers; their output is appended to their log files.

        If interrupted, either no server runs or each has its pid file.

        Raises:
            Unavailable: this installation cannot run a server; with the output of the parent.
        """
        for server in servers:
            Path(server.dir).parent.mkdir(parents=True, exist_ok=True)
        self.fork([_job(layout, s, self._bound) for s in servers])

    def fork(self, jobs: Sequence[Job]) -> None:
        """Start processes. Raises as `start`."""
        if self._parent is None or self._parent.poll() is not None:
            self._parent = _ready_parent()
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(msgspec.json.encode(jobs) + b"\n")
        self._parent.stdin.flush()
        try:
            done = self._parent.stdout.readline() == READY
        except BaseException:  # wait: forking takes milliseconds
            self._parent.stdout.readline()
            raise
        if not done:
            raise Unavailable(f"the server process failed to start: {_error_output(self._parent)}")

    def close(self) -> None:
        """Close the connection to the parent."""
        if self._parent is not None:
            self._parent.communicate()
            self._parent = None


def _ready_parent() -> "subprocess.Popen[bytes]":
    environ = {**os.environ, **MALLOC, "PYTHONUNBUFFERED": "1"}
    require_tls13(environ)
    parent = subprocess.Popen(
        [sys.executable, "-m", "nyala.cli.forkserver"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environ, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    try:
        ready = parent.stdout.readline() == READY
    except BaseException:  # interrupted: nothing has been forked yet
        parent.kill()
        parent.communicate()
        raise
    if not ready:
        raise Unavailable(f"the server process failed to start: {_error_output(parent)}")
    return parent


def _error_output(parent: "subprocess.Popen[bytes]") -> str:
    output: bytes = parent.communicate()[1]
    return output.decode(errors="replace").strip() or f"exit status {parent.returncode}"


def _job(layout: Layout, server: ServerSpec, bound: bool) -> Job:
    words = [
        server.role, "run",
        "--dir", server.dir,
        "--address", server.address,
        "--peer-address", server.peer_address,
        "--web-address", server.web_address,
        "--master-addresses", layout.masters,
    ]  # fmt: skip
    files = joined_files(server.dir) if layout.secure else None
    words += [] if files is None else files.options
    words += ["--join-address", server.join_address] if server.join_address else []
    for name, value in layout.options.items():
        words += ["--set", f"{name}={value}"]
    return Job(words, layout.dir, server.log, pid_file(server), bound)
