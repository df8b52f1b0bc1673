"""Nemesis (Jepsen's term): injects a swarm's faults into servers until `heal`; disks: `disk_faults.py`."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.faults.disk_faults import DiskFaultInjector
from tests.sim.faults.plan import Swarm
from tests.sim.world.network import NetFaults, SimNetwork
from tests.sim.world.process import SimProcess

Fault = Callable[[], Awaitable[None]]


class Nemesis:
    """Injects the faults of one run.

    Args:
        network: of the simulation.
        servers: to crash, pause and skew; the list may change during the run.
        processes: names of all processes that partitions separate, clients included.
        swarm: rates of the faults.
        rng: source of the choices.
        leader: returns the present leader, the preferred target of faults.
        prone: servers with disk faults, never a majority of any group.
        extra: further faults, with the mean seconds between two.

    Attributes:
        alone: whether a fault of `only` is active, during which no other one begins.
    """

    def __init__(
        self,
        network: SimNetwork,
        servers: Sequence[SimProcess],
        processes: Sequence[str],
        swarm: Swarm,
        rng: random.Random,
        leader: Callable[[], SimProcess | None] = lambda: None,
        prone: Sequence[SimProcess] = (),
        extra: Sequence[tuple[float, Fault]] = (),
    ) -> None:
        self._network = network
        self._leader = leader
        self._loop = network.loop
        self._servers = servers
        self._processes = list(processes)
        self._swarm = swarm
        self._rng = rng
        self._extra = list(extra)
        self.alone = False
        self._under_way = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._disk_faults = DiskFaultInjector(self._loop, rng, swarm, servers, prone)
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
                by_us = round(self._rng.uniform(-1, 1) * swarm.skew_ms * 1000)
                _set_off(server, by_us, swarm.offset_ms)
                self._loop.trace.note("skew", f"{server.name} {server.clock.skew_us}")

    def start(self) -> None:
        """Start; faults are injected at random times until `heal`."""
        swarm = self._swarm
        for mean_s, fault in (
            (swarm.crash_s, self._crash),
            (swarm.partition_s, self._partition),
            (swarm.pause_s, self._pause),
            (swarm.jump_s, self._jump),
            *self._disk_faults.faults(),
            *self._extra,
        ):
            if mean_s:
                self._tasks.append(self._loop.create_task(self._repeat(mean_s, fault)))

    async def _repeat(self, mean_s: float, fault: Fault) -> None:
        while True:
            await self._loop.delay(self._rng.expovariate(1 / mean_s) * 1e6)
            while self.alone:
                await self._loop.delay(100_000)
            self._under_way += 1
            try:
                await fault()
            finally:
                self._under_way -= 1

    async def only(self, fault: Fault) -> None:
        """Run a fault exclusively: wait until active ones have ended, and let none begin."""
        self.alone = True
        try:
            while self._under_way > 1:  # the caller is a fault itself
                await self._loop.delay(100_000)
            await fault()
        finally:
            self.alone = False

    async def heal(self) -> None:
        """Stop all faults; all processes run and are connected again."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                raise ended
        self._tasks.clear()
        self._network.heal()
        self._network.faults = NetFaults()
        self._disk_faults.heal()
        self._loop.trace.note("healed", "")
        for server in self._servers:
            server.delays.slow_rate = 0.0
            server.disk.die_at = server.disk.die_when = None
            server.resume()
            if not server.alive:
                server.start()

    def _victim(self) -> SimProcess:
        """Draw a running server; at least one exists."""
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
            if not victims[0].alive:  # torn bytes need a power failure
                victims[0].power_cut()
                victims = victims[1:]
        for victim in victims:
            power_cut = self._rng.random() < self._swarm.power_cut_rate
            if victim.alive and not victim.disk.doubtful:
                victim.kill(power_cut=power_cut)
        await self._loop.delay(self._rng.expovariate(1 / self._swarm.down_s) * 1e6)
        for server in self._servers:
            if not server.alive:
                server.start()

    async def _kill_in_operation(self, victim: SimProcess) -> None:
        """Crash a process in one of its next file operations, or in one of those that change names."""
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
        names = self._processes[:]
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
        _set_off(victim, by_us, self._swarm.offset_ms)
        self._loop.trace.note("jump", f"{victim.name} {by_us}")


def _set_off(server: SimProcess, by_us: int, most_ms: float) -> None:
    """Move a wall clock within the allowed offsets."""
    clock, most_us = server.clock, round(most_ms * 1000)
    clock.jump(min(max(clock.skew_us + by_us, -most_us), most_us) - clock.skew_us)
