"""What goes wrong in one run, drawn from its seed, and the nemesis that does it.

Swarm testing: each seed draws its own mixture, some faults often, some never, so that rare
combinations are reached. `KINDS` names every kind; a test over several seeds asserts that each
happened.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from tests.sim.network import NetFaults, SimNetwork
from tests.sim.process import SimProcess
from tests.sim.trace import Trace

KINDS: Mapping[str, tuple[str, ...]] = {
    "message lost": ("peer_lost", "call_lost", "answer_lost"),
    "message doubled": ("peer_doubled",),
    "call doubled": ("call_doubled",),
    "message overtaken": ("straggler",),
    "partition": ("partition",),
    "one-way partition": ("one_way",),
    "flapping link": ("flapping",),
    "power cut": ("power_cut",),
    "kill": ("kill",),
    "death in a file operation": ("death_in_file_operation",),
    "unsynced bytes lost": ("crash_keeps_none",),
    "unsynced bytes torn": ("crash_keeps_prefix",),
    "unsynced bytes reordered": ("crash_keeps_sectors",),
    "unsynced names undone": ("names_undone",),
    "slow sync": ("slow_sync",),
    "pause": ("pause",),
    "clock skew": ("skew",),
    "clock jump": ("jump",),
}


def count(trace: Trace) -> Counter[str]:
    """Return how often each kind of fault happened."""
    return Counter({k: sum(trace.counts[e] for e in events) for k, events in KINDS.items()})


def missing(seen: Counter[str], *, but: Collection[str] = ()) -> list[str]:
    """Return the kinds that have not happened."""
    return [k for k in KINDS if not seen[k] and k not in but]


@dataclass(slots=True)
class Swarm:
    """One seed's mixture. Means are in virtual seconds; 0 means never.

    Attributes:
        loss_rate: see `NetFaults`, as the four after it.
        leader_rate: how many faults go to a leader.
        crash_s: mean time between crashes of one process.
        down_s: mean time until it is started again.
        power_cut_rate: how many crashes are power cuts (others keep the page cache).
        in_operation_rate: how many crashes happen in the middle of a file operation.
        everyone_rate: how many crashes take all servers at once.
        partition_s: mean time between partitions.
        partition_length_s: mean length of one.
        pause_s: mean time between pauses.
        pause_length_s: mean length of one.
        jump_s: mean time between clock jumps.
        skew_ms: largest offset of a wall clock.
        slow_rate: how many disk jobs are slow.
        slow_ms: mean of a slow one.
    """

    loss_rate: float = 0.0
    duplicate_rate: float = 0.0
    straggler_rate: float = 0.0
    straggler_ms: float = 50.0
    delay_us: float = 300.0
    leader_rate: float = 0.5
    crash_s: float = 0.0
    down_s: float = 1.0
    power_cut_rate: float = 1.0
    in_operation_rate: float = 0.0
    everyone_rate: float = 0.0
    partition_s: float = 0.0
    partition_length_s: float = 2.0
    pause_s: float = 0.0
    pause_length_s: float = 1.0
    jump_s: float = 0.0
    skew_ms: float = 0.0
    slow_rate: float = 0.0
    slow_ms: float = 50.0

    def text(self) -> str:
        """Return what differs from calm."""
        calm = Swarm()
        return " ".join(
            f"{f.name}={getattr(self, f.name):g}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(calm, f.name)
        )


def draw(rng: random.Random) -> Swarm:
    """Draw a mixture."""
    pick = rng.choice
    return Swarm(
        loss_rate=pick((0, 0, 0.01, 0.05, 0.15)),
        duplicate_rate=pick((0, 0.02, 0.1, 0.3)),
        straggler_rate=pick((0, 0.02, 0.1)),
        straggler_ms=pick((5, 50, 500)),
        delay_us=pick((100, 300, 2000, 10_000)),
        leader_rate=pick((0, 0.5, 1)),
        crash_s=pick((0, 3, 6, 12)),
        down_s=pick((0.2, 1, 4)),
        power_cut_rate=pick((0, 0.5, 1, 1)),
        in_operation_rate=pick((0.3, 0.7, 1)),
        everyone_rate=pick((0, 0.1, 0.3)),
        partition_s=pick((0, 3, 6, 12)),
        partition_length_s=pick((0.3, 2, 5)),
        pause_s=pick((0, 4, 10)),
        pause_length_s=pick((0.1, 1, 4)),
        jump_s=pick((0, 5, 15)),
        skew_ms=pick((0, 5, 500, 5000)),
        slow_rate=pick((0, 0.01, 0.1)),
        slow_ms=pick((10, 100, 1000)),
    )


class Nemesis:
    """Does a swarm's faults to a set of servers until told to heal.

    Args:
        network: of the simulation.
        servers: what is crashed, paused and skewed.
        everybody: names that partitions divide, clients among them.
        swarm: what to do how often.
        rng: when and to whom.
        leader: who leads now, since faults that meet a leader tell most.
    """

    def __init__(
        self,
        network: SimNetwork,
        servers: Sequence[SimProcess],
        everybody: Sequence[str],
        swarm: Swarm,
        rng: random.Random,
        leader: Callable[[], SimProcess | None] = lambda: None,
    ) -> None:
        self._network = network
        self._leader = leader
        self._loop = network.loop
        self._servers = list(servers)
        self._everybody = list(everybody)
        self._swarm = swarm
        self._rng = rng
        self._tasks: list[asyncio.Task[None]] = []
        self._apply_rates()

    def _apply_rates(self) -> None:
        swarm = self._swarm
        self._network.faults = NetFaults(
            swarm.delay_us,
            swarm.loss_rate,
            swarm.duplicate_rate,
            swarm.straggler_rate,
            swarm.straggler_ms * 1000,
        )
        for server in self._servers:
            server.delays.slow_rate = swarm.slow_rate
            server.delays.slow_us = swarm.slow_ms * 1000
            if swarm.skew_ms:
                server.clock.jump(round(self._rng.uniform(-1, 1) * swarm.skew_ms * 1000))
                self._loop.trace.note("skew", f"{server.name} {server.clock.skew_us}")

    def start(self) -> None:
        """Begin; faults come at random until `heal`."""
        swarm = self._swarm
        for mean_s, fault in (
            (swarm.crash_s, self._crash),
            (swarm.partition_s, self._partition),
            (swarm.pause_s, self._pause),
            (swarm.jump_s, self._jump),
        ):
            if mean_s:
                self._tasks.append(self._loop.create_task(self._repeat(mean_s, fault)))

    async def _repeat(self, mean_s: float, fault: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._loop.delay(self._rng.expovariate(1 / mean_s) * 1e6)
            await fault()

    async def heal(self) -> None:
        """Stop all faults; everything runs again and reaches everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._network.heal()
        self._network.faults = NetFaults()
        for server in self._servers:
            server.delays.slow_rate = 0.0
            server.disk.die_at = server.disk.die_when = None
            server.resume()
            if not server.alive:
                server.start()

    def _victim(self) -> SimProcess:
        """Draw a living server; there is one."""
        leader = self._leader()
        if leader is not None and self._rng.random() < self._swarm.leader_rate:
            return leader
        return self._rng.choice([s for s in self._servers if s.alive])

    async def _crash(self) -> None:
        alive = [s for s in self._servers if s.alive]
        if not alive:
            return
        everyone = self._rng.random() < self._swarm.everyone_rate
        victims = alive if everyone else [self._victim()]
        if self._rng.random() < self._swarm.in_operation_rate:
            await self._kill_in_operation(victims[0])
            if not victims[0].alive:  # torn bytes need the power to go with the process
                victims[0].power_cut()
                victims = victims[1:]
        for victim in victims:
            power_cut = self._rng.random() < self._swarm.power_cut_rate
            if victim.alive:
                victim.kill(power_cut=power_cut)
        await self._loop.delay(self._rng.expovariate(1 / self._swarm.down_s) * 1e6)
        for server in self._servers:
            if not server.alive:
                server.start()

    async def _kill_in_operation(self, victim: SimProcess) -> None:
        """Let a process die in one of its next file operations, or one of those that change names."""
        if self._rng.random() < 0.6:
            victim.disk.die_after(1 + self._rng.randrange(8))
        else:
            victim.disk.die_when = lambda kind, path: kind in ("rename", "sync_dir", "write_new")
        for _ in range(30):
            await self._loop.delay(50_000)
            if not victim.alive:
                return
        victim.disk.die_at = victim.disk.die_when = None

    async def _partition(self) -> None:
        names = self._everybody[:]
        self._rng.shuffle(names)
        left = names[: 1 + self._rng.randrange(max(1, len(names) // 2))]
        leader = self._leader()
        if leader is not None and self._rng.random() < self._swarm.leader_rate:
            servers = {s.name for s in self._servers}
            left = [leader.name, *(n for n in left if n not in servers)]
        right = [n for n in names if n not in left]
        kind = self._rng.choice(("partition", "one_way", "flapping"))
        length_us = self._rng.expovariate(1 / self._swarm.partition_length_s) * 1e6
        self._loop.trace.note(kind, f"{' '.join(left)} | {' '.join(right)}")
        for _ in range(4 if kind == "flapping" else 1):
            if kind == "one_way":
                self._network.cut(*self._rng.choice(((left, right), (right, left))))
            else:
                self._network.partition(left, right)
            await self._loop.delay(length_us / (4 if kind == "flapping" else 1))
            self._network.heal()
            if kind == "flapping":
                await self._loop.delay(length_us / 8)

    async def _pause(self) -> None:
        alive = [s for s in self._servers if s.alive]
        if alive:
            victim = self._victim()
            victim.pause()
            await self._loop.delay(self._rng.expovariate(1 / self._swarm.pause_length_s) * 1e6)
            victim.resume()

    async def _jump(self) -> None:
        victim = self._rng.choice(self._servers)
        by_us = round(self._rng.choice((-1, 1)) * self._rng.expovariate(1) * 2_000_000)
        victim.clock.jump(by_us)
        self._loop.trace.note("jump", f"{victim.name} {by_us}")
