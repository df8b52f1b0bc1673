"""The outside world as one value, handed to every server and client."""

import random
from dataclasses import dataclass

from nyala.env.clock import Clock, SystemClock, system_random
from nyala.env.files import Files, SystemFiles
from nyala.env.rpc import Rpc
from nyala.env.tasks import LoopTasks, Tasks


@dataclass(frozen=True, slots=True)
class Env:
    """Everything that touches the outside world. Made once per process (or simulated process)."""

    clock: Clock
    random: random.Random
    files: Files
    tasks: Tasks
    rpc: Rpc


def system_env(rpc: Rpc, compute_threads: int = 2) -> Env:
    """The real environment; call it on the running loop that will own the process's tasks."""
    return Env(SystemClock(), system_random(), SystemFiles(), LoopTasks(compute_threads), rpc)
