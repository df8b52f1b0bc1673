"""`nyala` for the pages' shells without its imports: a process with all imports forks one for each command.

A command spends most of a second on imports, and a page has dozens. The command line runs unchanged in
a process of its own with the caller's folder, environment and files.

    python -m tests.docs.quick SOCKET        the parent; prints a line when it is ready, ends with its input
"""

import array
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import array, json, os, socket, sys
if sys.argv[2:3] == ["run"]:  # a server: the process that the shell knows
    os.execv({python!r}, [{python!r}, "-m", "nyala.cli.main", *sys.argv[1:]])
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
fds = array.array("i", [0, 1, 2])
words = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
link.sendmsg([len(words).to_bytes(4, "big") + words], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
os._exit(int.from_bytes(link.recv(1) or b"\\1", "big"))
"""
USED = (
    "nyala.cli.main", "nyala.client.connection", "nyala.operate.run", "nyala.operate.unsafe_config",
    "nyala.operate.ksck.check",
    "nyala.offline.copy", "nyala.offline.rewrite_config", "nyala.testing.local_cluster", "nyala.cli.serve",
)  # fmt: skip


class Quick:
    """The parent process, and a folder with a `nyala` that sends it commands.

    Args:
        folder: empty folder for both.
    """

    def __init__(self, folder: Path) -> None:
        path = str(folder / "socket")
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.quick", path],
            stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._parent.stdout is not None
        assert self._parent.stdout.readline() == b"ready\n", (
            "the parent process of commands does not start"
        )
        client = folder / "nyala"
        client.write_text(CLIENT.format(python=sys.executable, path=path))
        client.chmod(0o755)

    def close(self) -> None:
        """Kill the parent, and every command that it left running."""
        os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()


def main(path: str) -> None:
    """Import, then fork a command for each caller."""
    for name in USED:
        importlib.import_module(name)
    from nyala.cli.main import app

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    os.write(1, b"ready\n")
    watched: list[Any] = [listener, 0]
    while select.select(watched, [], [])[0] == [listener]:  # else the caller has ended
        link = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(link, app)
        link.close()


def _become(link: socket.socket, app: Any) -> None:
    """Run one command in its caller's folder and environment, and return its exit status."""
    head, control, _, _ = link.recvmsg(4, socket.CMSG_SPACE(12))
    words, folder, environ = json.loads(link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    fds = array.array("i")
    fds.frombytes(control[0][2])
    for standard, given in enumerate(fds):
        os.dup2(given, standard)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    status = 1
    try:
        app(words, prog_name="nyala")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        link.send(bytes([status]))
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
