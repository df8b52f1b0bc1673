"""Faults of a run of an ensemble, drawn from its seed: of the journal, the coordinators and the servers."""

from dataclasses import dataclass, replace

from tests.sim.faults.plan import Swarm
from tests.sim.world.loop import seeded


@dataclass(frozen=True, slots=True)
class EnsembleFaults:
    """One seed's mixture.

    Attributes:
        journal: faults of the journal's servers, and the network's.
        coordinators: faults of the coordinators.
        servers: faults of the servers of the ensemble.
        members: number of these servers.
        point_s: mean time between crash points that are drawn, in seconds.
    """

    journal: Swarm
    coordinators: Swarm
    servers: Swarm
    members: int
    point_s: float


def draw_faults(seed: int) -> EnsembleFaults:
    """Return the mixture of a seed; under most of them clients can work."""
    pick = seeded(seed, "ensemble swarm").choice
    network = Swarm(
        loss_rate=pick((0, 0, 0.01, 0.05)),
        duplicate_rate=pick((0, 0.02, 0.1)),
        straggler_rate=pick((0, 0.01, 0.05)),
        straggler_ms=pick((50, 500, 2_000)),
        delay_us=pick((100, 300, 2_000)),
    )
    journal = replace(
        network, leader_rate=pick((0.3, 0.8)), crash_s=pick((0, 12, 25, 40)), down_s=pick((0.3, 1, 3)),
        power_cut_rate=pick((0, 0.5, 1)), everyone_rate=pick((0, 0.1)), partition_s=pick((0, 15, 30)),
        partition_length_s=pick((0.5, 2, 4)), pause_s=pick((0, 15, 30)), pause_length_s=pick((0.2, 1, 3)),
        jump_s=pick((0, 15)), skew_ms=pick((0, 5, 500, 4000)), slow_rate=pick((0, 0.002, 0.01)),
        slow_ms=pick((50, 500, 1500)),
    )  # fmt: skip
    coordinators = replace(
        network, leader_rate=0.8, crash_s=pick((0, 20, 40)), down_s=pick((0.3, 2, 6)),
        everyone_rate=pick((0, 0.2)), pause_s=pick((0, 15, 30)), pause_length_s=pick((1, 4, 8)),
        partition_s=pick((0, 25, 50)), partition_length_s=pick((2, 5)),
    )  # fmt: skip
    servers = replace(
        network, leader_rate=0, crash_s=pick((6, 12, 25)), down_s=pick((0.2, 1, 4)),
        everyone_rate=pick((0, 0.05)), pause_s=pick((0, 10, 20)), pause_length_s=pick((0.3, 2, 4)),
    )  # fmt: skip
    return EnsembleFaults(journal, coordinators, servers, pick((4, 5, 6)), pick((5, 10, 20)))
