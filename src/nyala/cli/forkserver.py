"""Starts several servers of this machine for the price of one: imports once, then forks each of them.

A server spends about two seconds of CPU on imports and compiled kernels; on two cores six of them spend
six seconds. Run as `python -m nyala.cli.forkserver`: prints `READY` once everything is imported, reads
one JSON list of `Job`s from standard input, forks them, and ends. No loop, channel or lane exists yet when it
forks; Arrow's allocator and numpy's pool have handlers of their own for it.
"""

import gc
import os
import sys

import msgspec
import setproctitle

from nyala.testing.processes import READY, Job, write_pid_file


def main() -> None:
    """Import, say so, fork what is asked for."""
    from nyala.cli.servers import spare_pandas

    spare_pandas()
    import nyala.cli.serve  # noqa: F401 - what all of them need
    from nyala.cli.main import app

    gc.collect()
    gc.freeze()  # what is there is shared by all: no collection writes to it
    os.write(1, READY)
    for job in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job]):
        if os.fork() == 0:
            _become(job)
            app(job.words, prog_name="nyala")


def _become(job: Job) -> None:
    """Make this process a server's: a session, a folder, a log and a name of its own."""
    os.setsid()
    write_pid_file(job.pid_file, os.getpid())
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
