"""Seeds run one after the other, or by several processes at once."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SEEDS_A_PROCESS = 20  # memory left by a seed is freed with the process

Job = TypeVar("Job")
Found = TypeVar("Found")


def judged(judge: Callable[[Job], Found], jobs: Iterable[Job], workers: int) -> Iterator[Found]:
    """Return the result of each job, in order. At most one job per worker is taken in advance.

    Args:
        judge: function of a module, so that a new process can import it.
        jobs: jobs; the next one is taken when a worker is free.
        workers: number of processes; 1: this process.
    """
    if workers == 1:
        yield from map(judge, jobs)
        return
    spawned = multiprocessing.get_context("spawn")
    with spawned.Pool(workers, maxtasksperchild=SEEDS_A_PROCESS) as pool:
        waiting = []
        for job in jobs:
            waiting.append(pool.apply_async(judge, (job,)))
            while len(waiting) > workers:
                yield waiting.pop(0).get()
        for one in waiting:
            yield one.get()
