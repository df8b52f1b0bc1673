"""Faults of disks while they run: bit flips, I/O errors, full disks.

Bit flips and I/O errors occur only on the disks of `prone` servers, of which no group has a majority: a
replica with damage stays FAILED, and the others have to continue. Any disk may be full for a while, or
occasionally refuse the growth of files. While a flipped bit could not be distinguished from the torn tail of
a crash, no server crashes (`SimDisk.doubtful`), and no bit is flipped.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.faults.plan import Swarm
from tests.sim.world.files import DiskFaults
from tests.sim.world.inode import Inode
from tests.sim.world.loop import SimLoop
from tests.sim.world.process import SimProcess

FREE_BYTES = 3000
"""Largest number of free bytes on a disk that becomes full."""
READS = 20
"""Factor of the fault rates of reads, which are rarer than writes, since most are at a start."""
LEAST_LOG_BYTES = 4000
"""Bytes of the shortest log in which bits are flipped: its last records must prove those before them."""


class DiskFaultInjector:
    """Faults of the disks of one run.

    Args:
        loop: virtual time.
        rng: source of the choices.
        swarm: rates of the faults.
        servers: all servers.
        prone: servers with bit flips and I/O errors.
    """

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        swarm: Swarm,
        servers: Sequence[SimProcess],
        prone: Sequence[SimProcess],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._swarm = swarm
        self._servers = list(servers)
        self._prone = list(prone)
        for server in self._prone:
            server.disk.faults = DiskFaults(
                read_flip_rate=min(0.2, READS * swarm.flip_rate),
                write_flip_rate=swarm.flip_rate,
                read_eio_rate=min(0.2, READS * swarm.eio_rate),
                write_eio_rate=swarm.eio_rate,
                sync_eio_rate=swarm.eio_rate,
            )

    def faults(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        """Return the faults to repeat, with the mean time between them."""
        return [
            (self._swarm.rot_s if self._prone else 0.0, self._flip_bit),
            (self._swarm.full_s, self._fill),
            (self._swarm.no_room_s, self._refuse_growth),
        ]

    def heal(self) -> None:
        """End all faults; damage remains."""
        for server in self._servers:
            server.disk.faults = DiskFaults()

    async def _flip_bit(self) -> None:
        server = self._rng.choice(self._prone)
        seen = server.disk.names.seen
        found = [
            (f"{directory}/{name}", inode)
            for directory in sorted(seen)
            for name, inode in sorted(seen[directory].items())
            if not inode.changes and not name.endswith((".new", ".tmp", ".lock"))
        ]
        spans = [(path, _span(path, inode)) for path, inode in found]
        spans = [(path, span) for path, span in spans if span]
        if spans:
            path, span = self._rng.choice(spans)
            server.disk.flip_bit(path, self._rng.randrange(span))

    async def _fill(self) -> None:
        server = self._rng.choice(self._servers)
        free = self._rng.randrange(FREE_BYTES)
        server.disk.faults.capacity_bytes = server.disk.used_bytes() + free
        self._loop.trace.note("disk_fills", f"{server.name} {free}")
        await self._loop.delay(self._rng.expovariate(1 / self._swarm.full_length_s) * 1e6)
        server.disk.faults.capacity_bytes = None
        self._loop.trace.note("disk_has_room", server.name)

    async def _refuse_growth(self) -> None:
        server = self._rng.choice(self._servers)
        server.disk.faults.no_room_rate = self._swarm.no_room_rate
        await self._loop.delay(self._rng.expovariate(1 / self._swarm.no_room_length_s) * 1e6)
        server.disk.faults.no_room_rate = 0.0


def _span(path: str, inode: Inode) -> int:
    """Return the length of the prefix of a file in which bits may be flipped."""
    if "/wal/" not in path:
        return len(inode.content)
    used = len(inode.content.rstrip(b"\0"))
    return used * 3 // 4 if used >= LEAST_LOG_BYTES else 0
