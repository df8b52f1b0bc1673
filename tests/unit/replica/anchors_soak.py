"""One server of three is permanently down, 50 groups, steady writes to five: log and memory stay bounded.

`python -m tests.unit.replica.anchors_soak --seconds 3600` runs the full size; `./run soak pins` does.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from unittest import mock

from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.replica import host
from tests.sim.world.loop import SimLoop, run
from tests.unit.replica.support.replica_support import Fleet

SEGMENT_BYTES = 64 << 10
KEPT = 4
BUSY = 5
GROUPS = tuple(TabletId(f"{n:032x}") for n in range(1, 51))
OPTIONS = Options(
    wal_segment_mb=1, wal_retain_mb=KEPT, wal_retain_for_peers_mb=1, wal_reserve_mb=0,
    flush_log_bytes=1 << 17, flush_bytes=1 << 17, raft_cache_bytes=1 << 14, raft_append_bytes=1 << 16,
)  # fmt: skip
PADDING = b"x" * 8000
FILLED = 60
"""Measurements after which the log was filled and released at least once: ten minutes."""


@dataclass(slots=True)
class Measured:
    """Sizes on the two living servers, once every ten seconds of virtual time; the greater of both."""

    segments: list[int] = field(default_factory=list)
    entries_bytes: list[int] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)
    writes: int = 0

    def look(self, fleet: Fleet) -> None:
        hosts = [fleet.host(n) for n in (0, 1)]
        self.segments.append(max(h.wal.stats().segments for h in hosts))
        self.held_bytes.append(max(sum(h.wal.held_bytes().values()) for h in hosts))
        nodes = [[r.node for r in h.all() if r.node is not None] for h in hosts]
        self.entries_bytes.append(max(sum(n.view.log_bytes for n in own) for own in nodes))


async def scenario(loop: SimLoop, seconds: int) -> Measured:
    """Run the load; return the measurements."""
    with mock.patch.object(host, "MIB", SEGMENT_BYTES):
        fleet = await Fleet(loop, 3, OPTIONS).start(GROUPS)
    for group in GROUPS:
        await fleet.write(b"k 1", group=group)
    fleet.processes[2].kill()
    for group in GROUPS:
        await fleet.write(b"k 1", group=group)
    measured = Measured()
    for second in range(seconds):
        for group in GROUPS[:BUSY]:
            await fleet.write(b"k" + PADDING + b" 1", group=group)
            measured.writes += 1
        await fleet.pass_ms(1000)
        if second % 10 == 9:
            measured.look(fleet)
    with mock.patch.object(host, "MIB", SEGMENT_BYTES):
        await fleet.boot(2)
    for group in GROUPS[BUSY:]:
        await fleet.settled(group)
        assert fleet.machine(2, group).sums == {"k": 2}, f"{group} came back with a part"
    for group in GROUPS[:BUSY]:
        await _back(fleet, group)
    for process in fleet.processes:
        assert not process.failures, process.failures
    return measured


async def _back(fleet: Fleet, group: TabletId) -> None:
    """Wait until the returned server has caught up, or is reported to need a copy."""

    def known() -> bool:
        number = fleet.leading(group)
        if number is None:
            return False
        node = fleet.replica(number, group).node
        assert node is not None
        status = node.status()
        return all(p.needs_copy or p.match == status.last.index for p in status.peers)

    await fleet.until(known, f"server 2 is level in {group}, or needs a copy")


def check(measured: Measured) -> None:
    """Raise AssertionError where the log or the memory was not flat."""
    limit = 1 << 20  # wal_retain_for_peers_mb
    kept = KEPT + 8 + 4 * limit // SEGMENT_BYTES
    assert max(measured.segments) <= kept, measured.segments
    assert max(measured.held_bytes) <= 2 * limit, measured.held_bytes
    assert max(measured.entries_bytes) <= len(GROUPS) * (1 << 15), measured.entries_bytes
    if len(measured.segments) < FILLED:
        return  # how the log grows until then depends on the order of flushes
    third = len(measured.segments) // 3  # the first one is filled
    for series in (measured.segments, measured.entries_bytes, measured.held_bytes):
        assert max(series[2 * third :]) <= 1.2 * max(series[third : 2 * third]) + 4, series


def main() -> int:
    """Run the full size; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600)
    asked = parser.parse_args()
    began = time.process_time()
    measured = run(lambda loop: scenario(loop, asked.seconds), max_time_s=2 * asked.seconds + 600)
    check(measured)
    print(
        f"{asked.seconds} simulated seconds, {measured.writes} writes, {len(GROUPS)} groups: at most "
        f"{max(measured.segments)} segments of 64 KiB, {max(measured.entries_bytes)} bytes of entries in "
        f"memory, {max(measured.held_bytes)} held for the dead; {time.process_time() - began:.0f} s of CPU"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
