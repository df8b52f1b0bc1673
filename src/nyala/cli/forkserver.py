"""Parent process of servers: imports what they need, then forks them; see `nyala.testing.forkserver`.

Prints `READY` once everything is imported; then for each line of standard input, a JSON list of `Job`s, forks
them, writes their pid files and prints `READY` again. Exits at the end of its input.
"""

import ctypes
import gc
import os
import signal
import sys

import msgspec
import setproctitle

from nyala.cli.security.network import PRIVATE
from nyala.testing.forkserver import READY, Job
from nyala.testing.processes import write_pid_file

PR_SET_PDEATHSIG = 1
"""Number of the prctl operation, from linux/prctl.h."""


def main() -> None:
    """Import, then fork the servers of each line of jobs."""
    from nyala.cli.servers import prepare_imports

    prepare_imports()
    import nyala.cli.serve  # noqa: F401 - what all of them need
    from nyala.cli.main import app

    os.umask(PRIVATE)
    gc.collect()
    gc.freeze()  # shared memory: no collection writes to it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    parent = os.getpid()
    os.write(1, READY)
    for line in sys.stdin.buffer:
        for job in msgspec.json.decode(line, type=list[Job]):
            pid = os.fork()
            if pid == 0:
                if job.bound:
                    _end_with_parent(parent)
                _detach(job)
                app(job.words, prog_name="nyala")
            write_pid_file(job.pid_file, pid)
        os.write(1, READY)


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, with the main thread that forked it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def _detach(job: Job) -> None:
    """Turn this forked process into a server's: new session, working directory, log and process name."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(job.dir)
    log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(opened, standard)
    os.close(nothing)
    os.close(log)
    setproctitle.setproctitle(" ".join(["nyala", *job.words]))


if __name__ == "__main__":
    main()
