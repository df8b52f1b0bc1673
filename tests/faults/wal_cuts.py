"""Power failures of the disk under one process that writes the real log: `python -m tests.faults.wal_cuts`.

Each incarnation opens the log after the previous power failure, writes six groups until the next one, and is
then killed, or gets errors and ends by itself. Inside a sandbox only (sandbox.py).
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.faults.support.disks import Disk
from tests.faults.support.frozen import freeze
from tests.faults.support.wal_judge import Judge
from tests.faults.wal_writer import Notebook, live
from tests.waiting import wait_until

LIFE_S = 20.0
MOST_BYTES = 120_000
"""Bytes of the notebook at which the power is cut: a few hundred slots."""
MOST_EXTRA_RUNS = 20


def fork(disk: Disk, notebook: Path, rng: random.Random, *, sync: bool, write: bool) -> int:
    """Start a process; return its pid."""
    child_rng = random.Random(rng.random())
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        notes = Notebook(notebook)
        asyncio.run(live(disk.folder / "server", notes, child_rng, sync=sync, write=write))
        status = 0
    except OSError:
        status = 0  # the power failed while the log was opened
    except BaseException:  # a forked child must not return into its parent's stack
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def end(pid: int) -> None:
    """Wait until the process has ended by itself or by `kill -9`; any other end is a failure."""
    status = wait_until(lambda: ended(pid), f"life {pid} ends", LIFE_S)[0]
    assert status in (0, signal.SIGKILL), f"an incarnation ended with status {status}; see above"


def ended(pid: int) -> tuple[int] | None:
    got, status = os.waitpid(pid, os.WNOHANG)
    return (status,) if got else None


def one_cut(disk: Disk, folder: Path, rng: random.Random, judge: Judge, *, sync: bool) -> None:
    """Run one process until one power failure."""
    notebook = folder / f"life-{disk.cuts}"
    notebook.touch()
    goal = rng.choice((0, 1, rng.randrange(MOST_BYTES), rng.randrange(MOST_BYTES)))
    pid = fork(disk, notebook, rng, sync=sync, write=True)
    try:
        wait_until(
            lambda: notebook.stat().st_size >= goal, "the log is written", LIFE_S, poll_s=0.0005
        )
        logs = sorted((disk.folder / "server" / "wal").glob("*.wal"))
        if logs and rng.random() < 0.5:
            disk.write_back(logs[-1], rng)
        if rng.random() < 0.7:
            freeze([pid])
            disk.cut()
            os.kill(pid, signal.SIGKILL)
            counted = notebook.stat().st_size
        else:
            counted = notebook.stat().st_size
            disk.cut()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    end(pid)
    disk.power_on()
    judge.read(notebook, counted)
    notebook.unlink()


def run(cuts: int, seed: int, folder: Path, *, sync: bool = True, until: float = 1e12) -> Judge:
    """Cut the power repeatedly; return the checker after all checks have passed.

    Without syncs it continues, up to `UNLUCKY` times as many, until a cut has removed durable records:
    which pages the kernel writes by itself does not depend on the seed.
    """
    rng, judge = random.Random(seed), Judge(sync=sync)
    disk = Disk(folder / "image", folder / "disk")
    (disk.folder / "server").mkdir()
    os.sync()

    def enough() -> bool:
        lucky = sync or judge.lost_durable or disk.cuts >= MOST_EXTRA_RUNS * cuts
        return time.monotonic() >= until or (disk.cuts >= cuts and bool(lucky))

    while not enough():
        one_cut(disk, folder, rng, judge, sync=sync)
    end(fork(disk, folder / "last", rng, sync=sync, write=False))
    judge.read(folder / "last", 0)
    disk.unmount()
    return judge


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="an empty folder")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--no-sync", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    until = began + 60 * given.minutes
    judge = run(given.cuts, given.seed, given.dir, sync=not given.no_sync, until=until)
    print(
        f"wal cuts: seed {given.seed}, at least {given.cuts} cuts, {judge.durable} slots called durable, "
        f"{judge.lost_durable} of them lost, {judge.lost} slots lost in all, {judge.torn} torn tails, "
        f"{judge.errors} lives that saw the error; {time.monotonic() - began:.0f} s"
    )
    if not given.no_sync:
        return 0
    return 0 if judge.lost_durable else 3


if __name__ == "__main__":
    sys.exit(main())
