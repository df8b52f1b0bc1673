"""The environment as one value, which every server and client gets."""

import random
from dataclasses import dataclass

from nyala.env.clock import Clock, SystemClock, system_random
from nyala.env.files import Files, SystemFiles
from nyala.env.rpc import Rpc
from nyala.env.tasks import LoopTasks, Tasks


@dataclass(frozen=True, slots=True)
class Env:
    """Access to everything outside the process; one per process or simulated process."""

    clock: Clock
    random: random.Random
    files: Files
    tasks: Tasks
    rpc: Rpc


def system_env(rpc: Rpc, compute_threads: int = 2) -> Env:
    """Return the environment of a real process; call it on the loop that will run the process's tasks."""
    return Env(SystemClock(), system_random(), SystemFiles(), LoopTasks(compute_threads), rpc)
