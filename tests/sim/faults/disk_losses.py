"""Losses of a disk while its server is down: deleted files or folders, flipped bits, a restored older image.

One server at a time, while the others run and are connected; recent votes and acknowledgements
that only a stopped or unreachable server received are unknown to the others. Checks: a returning
server has all entries again, or is FAILED; with an older image, which cannot be detected, it catches up.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.systems.core_cluster import CoreCluster, host
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess

CLIENTS = 5
ROUNDS = 4
WITHIN_S = 60


@dataclass
class Lost:
    """Losses of a run, by kind and by outcome."""

    kinds: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    caught_up: list[str] = field(default_factory=list)


def _remove(process: SimProcess, wanted: Callable[[str], bool]) -> None:
    """Remove files, durably."""
    files = process.disk.mount()
    for directory, names in sorted(process.disk.names.seen.items()):
        removed = [name for name in sorted(names) if wanted(f"{directory}/{name}")]
        for name in removed:
            files.remove(f"{directory}/{name}")
        if removed:
            files.sync_dir(directory)
    process.disk.kill()
    process.disk.lost_data = True


def _segments(process: SimProcess) -> list[str]:
    names = process.disk.names.seen.get("/data/wal", {})
    return [f"/data/wal/{n}" for n in sorted(names) if n.endswith(".wal")]


def _log_gone(process: SimProcess, rng: random.Random) -> None:
    _remove(process, lambda path: path.startswith("/data/wal/"))


def _segment_gone(process: SimProcess, rng: random.Random) -> None:
    segment = rng.choice(_segments(process))
    _remove(process, segment.__eq__)


def _file_gone(process: SimProcess, rng: random.Random) -> None:
    found = [
        f"{directory}/{name}"
        for directory, names in sorted(process.disk.names.seen.items())
        for name in sorted(names)
        if directory.startswith("/data/") or name == "wal.extent"
    ]
    lost = rng.choice(found)
    _remove(process, lost.__eq__)


def _folder_gone(process: SimProcess, rng: random.Random) -> None:
    folder = rng.choice(("/data/cmeta/", "/data/superblock/", "/data/data/"))
    _remove(process, lambda path: path.startswith(folder))


def _bit_turned(process: SimProcess, rng: random.Random) -> None:
    path = rng.choice(_segments(process))
    inode = process.disk.names.get(path)
    assert inode is not None
    used = len(inode.content.rstrip(b"\0"))
    process.disk.flip_bit(path, rng.randrange(used))


def _last_bits_turned(process: SimProcess, rng: random.Random) -> None:
    path = _segments(process)[-1]
    inode = process.disk.names.get(path)
    assert inode is not None
    used = len(inode.content.rstrip(b"\0"))
    process.disk.flip_bit(path, max(0, used - 1 - rng.randrange(60)))


KINDS: dict[str, Callable[[SimProcess, random.Random], None]] = {
    "log gone": _log_gone,
    "segment gone": _segment_gone,
    "file gone": _file_gone,
    "folder gone": _folder_gone,
    "bit turned": _bit_turned,
    "last bits turned": _last_bits_turned,
}
IMAGE = "older image"


class Losses:
    """One run: servers lose data, one after the other, under clients.

    Args:
        loop: virtual time.
        seed: seed of all choices.
    """

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = seeded(seed, "losses")
        self.cluster = CoreCluster(loop, seed, 3, host)
        self.found = Lost()

    async def run(self) -> Lost:
        """Inject losses until one server is FAILED; then two of three have to continue."""
        cluster, rng = self.cluster, self.rng
        for server in cluster.servers:
            server.start()
        cluster.add_workers(CLIENTS, 100_000)
        for _ in range(ROUNDS):
            await cluster.until(self._all_level, "all members have the same entries", WITHIN_S)
            victim = rng.choice(cluster.servers)
            kind = rng.choice((IMAGE, IMAGE, *KINDS))
            self.loop.trace.note("disk_loss", f"{victim.name} {kind}")
            self.found.kinds.append(kind)
            await self._lose(victim, kind)
            if not await self._comes_back(victim, kind):
                break
        await self._two_go_on()
        await cluster.progress(WITHIN_S)
        return self.found

    async def _lose(self, victim: SimProcess, kind: str) -> None:
        cluster, rng = self.cluster, self.rng
        image = victim.disk.image()
        await self.loop.delay(rng.choice((20, 300, 3000)) * 1000)
        victim.kill(power_cut=rng.random() < 0.5)
        if rng.random() < 0.5:  # long enough for an election
            target = cluster.history.acknowledged + 5
            await cluster.until(lambda: cluster.history.reached(target), "writes of two", WITHIN_S)
        if kind == IMAGE:
            cluster.put_back(victim.name)
            victim.disk.put_back(image)
        else:
            KINDS[kind](victim, rng)
        victim.start()

    async def _comes_back(self, victim: SimProcess, kind: str) -> bool:
        """Wait until a server has everything again; return False if its replica is FAILED instead."""

        def settled() -> bool:
            return self._failed(victim) or self._all_level()

        await self.cluster.until(settled, f"{victim.name} after `{kind}`", WITHIN_S)
        if self._failed(victim):
            assert kind != IMAGE, f"{victim.name} failed: {victim.server.failed}"
            self.found.failed.append(kind)
            return False
        self.found.caught_up.append(kind)
        return True

    async def _two_go_on(self) -> None:
        """Stop the failed server, or any: the two others accept writes."""
        cluster = self.cluster
        victim = next((s for s in cluster.servers if self._failed(s)), None)
        (victim or self.rng.choice(cluster.servers)).kill()
        target = cluster.history.acknowledged + 5
        await cluster.until(lambda: cluster.history.reached(target), "writes of two", WITHIN_S)

    @staticmethod
    def _failed(server: SimProcess) -> bool:
        return server.alive and server.server is not None and server.server.failed is not None

    def _all_level(self) -> bool:
        """Return whether all are active members, and have recently committed entries durably."""
        nodes = [self.cluster.node(s) for s in self.cluster.servers]
        highest = self.cluster.watch.highest
        return all(
            n is not None and n.leader is not None and n.core.log.stable >= highest for n in nodes
        )


def lose(seed: int) -> Lost:
    """Run one seed."""
    return run(lambda loop: Losses(loop, seed).run(), max_time_s=1200)
