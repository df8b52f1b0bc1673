"""The parent of servers: imports what they need, then forks them (`nyala.testing.forkserver` says why).

Prints `READY` once everything is imported; then for each line of standard input, a JSON list of `Job`s,
forks them, writes their pid files and prints `READY` again. Ends with its input.
"""

import gc
import os
import signal
import sys

import msgspec
import setproctitle

from nyala.testing.forkserver import READY, Job
from nyala.testing.processes import write_pid_file


def main() -> None:
    """Import, then fork what is asked for."""
    from nyala.cli.servers import block_pandas

    block_pandas()
    import nyala.cli.serve  # noqa: F401 - what all of them need
    from nyala.cli.main import app

    gc.collect()
    gc.freeze()  # what is there is shared by all: no collection writes to it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries those that end
    os.write(1, READY)
    for line in sys.stdin.buffer:
        for job in msgspec.json.decode(line, type=list[Job]):
            pid = os.fork()
            if pid == 0:
                _detach(job)
                app(job.words, prog_name="nyala")
            write_pid_file(job.pid_file, pid)
        os.write(1, READY)


def _detach(job: Job) -> None:
    """Make this process a server's: a session, a folder, a log and a name of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(job.dir)
    log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(nothing)
    os.close(log)
    setproctitle.setproctitle(" ".join(["nyala", *job.words]))


if __name__ == "__main__":
    main()
