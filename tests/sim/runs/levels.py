"""Levels at which one seed can be run, by the real part of the product.

core     Raft's core over a plain log          wal      Raft's core over nyala's log
host     the replica engine over the log       moving   the same, with replicas moved by copies
cluster  masters, tablet servers and clients
"""

from collections.abc import Callable

from tests.sim.checkers.outcome import Outcome
from tests.sim.faults.plan import DAMAGE, MOVES, WHOLE, Swarm
from tests.sim.runs.cluster_run import run_cluster
from tests.sim.runs.core_run import run_core
from tests.sim.systems.core_cluster import core, host, moving
from tests.sim.systems.stores import WalLog
from tests.sim.world.trace import Recorder

Level = Callable[[int, Swarm, float, Recorder | None], Outcome]


def _servers(seed: int) -> int:
    return 3 if seed % 3 else 5


def _core(seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None) -> Outcome:
    return run_core(seed, swarm, seconds=seconds, servers=_servers(seed), recorder=recorder)


def _wal(seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None) -> Outcome:
    make = core(store=WalLog)
    return run_core(seed, swarm, seconds=seconds, make=make, recorder=recorder)


def _host(seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None) -> Outcome:
    servers = _servers(seed)
    return run_core(seed, swarm, seconds=seconds, servers=servers, make=host, recorder=recorder)


def _moving(seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None) -> Outcome:
    return run_core(seed, swarm, seconds=seconds, servers=3, make=moving, recorder=recorder)


def _cluster(seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None) -> Outcome:
    return run_cluster(seed, swarm, seconds=seconds, recorder=recorder)


LEVELS: dict[str, Level] = {
    "core": _core, "wal": _wal, "host": _host, "moving": _moving, "cluster": _cluster
}  # fmt: skip
NO_ROOM = ("full disk", "write without room")
NOT_AT: dict[str, tuple[str, ...]] = {
    "core": ("call doubled", *DAMAGE, *MOVES, *WHOLE),
    "wal": ("call doubled", *DAMAGE, *MOVES, *WHOLE),
    "host": (*MOVES, *WHOLE),
    "moving": (*(k for k in DAMAGE if k not in NO_ROOM), *WHOLE),
    "cluster": ("membership change", *MOVES),
}
"""Kinds of faults that a level does not have."""
ROTATION = ("host", "wal", "moving", "core", "host", "cluster")


def level_of(seed: int) -> str:
    """Return the level of a seed for which none is named."""
    return ROTATION[seed % len(ROTATION)]
