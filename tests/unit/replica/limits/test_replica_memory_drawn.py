"""Drawn writes, stalled flushes, scans and copies: each part is counted, and all within the budget."""

import random
from typing import Any

import pytest

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.common.options import KIB, Options
from nyala.replica.copy.protocol import ENDED
from nyala.replica.copy.shielded_steps import PIECES
from nyala.replica.memory import MemoryPart
from nyala.tserver.scans.scan_memory import LEAST_BYTES, ScanMemory
from tests.selected import first
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.memory_support import burst, flusher
from tests.unit.replica.support.replica_support import GROUP

BUDGET = 512 * KIB
CHUNK = 4 * KIB
OPTIONS = Options(
    wal_segment_mb=1,
    wal_retain_mb=0,
    memory_budget_bytes=BUDGET,
    flush_bytes=64 * KIB,
    raft_append_bytes=16 * KIB,
    raft_inflight_bytes=32 * KIB,
    apply_group_bytes=16 * KIB,
    raft_cache_total_bytes=64 * KIB,
    copy_chunk_bytes=CHUNK,
    copy_rate_bytes=1000,
    copy_wait_ms=0,
)
GROUPS = (GROUP, TabletId("b" * 32), TabletId("c" * 32))
SCANS = BUDGET // 4
SLACK = SCANS + 100 * KIB + len(GROUPS) * (16 + 16 + 3 * 32) * KIB
"""Bytes above the budget: open scans, applied entries of each group, entries in flight at a leader."""


ON_THEIR_WAY_US = 5_000_000
"""Milliseconds for which chunks in flight count after the end of their copy."""


class Tablet:
    """A machine of the fleet as scans see a tablet."""

    def __init__(self, group, machine):
        self.info = self
        self.tablet_id = group
        self.machine = machine

    @property
    def flush_point(self):
        return self.machine.flush_point

    def unflushed_bytes(self):
        return self.machine.unflushed_bytes()


class Scans:
    """The memory of one server's scans, by the product's counter and by open scans and flushes."""

    def __init__(self, fleet, number):
        self.fleet, self.number = fleet, number
        self.memory = fleet.host(number).memory
        self.counted = ScanMemory(self.memory, OPTIONS)
        self.open: list[tuple[Any, Any, int, int]] = []
        self.refused = self.held = 0

    async def run(self, group, batch_bytes, duration_ms):
        tablet: Any = Tablet(group, self.fleet.machine(self.number, group))
        scan = (
            tablet,
            tablet.flush_point.op,
            tablet.unflushed_bytes(),
            max(batch_bytes, LEAST_BYTES),
        )
        try:
            with self.counted.open(tablet, batch_bytes):
                self.open.append(scan)
                try:
                    await self.fleet.pass_ms(duration_ms)
                finally:
                    self.open.remove(scan)
        except Throttled:
            assert self.open, "the first scan is always admitted"
            self.refused += 1

    def check(self):
        self.counted.update_held()
        batches = sum(size for *_, size in self.open)
        held: dict[tuple[Any, Any], int] = {}
        for tablet, flush_point, rows, _ in self.open:
            if tablet.flush_point.op != flush_point:
                key = tablet.tablet_id, flush_point
                held[key] = max(held.get(key, 0), rows)
        self.held = max(self.held, sum(held.values()))
        assert self.memory.of(MemoryPart.SCANS) == batches + sum(held.values())
        assert batches <= SCANS or len(self.open) == 1


class Copies:
    """The memory limit of the copies of all servers, by their requests in flight."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.most = {"to": 0, "from": 0}
        self.good_us: dict[int, int] = {}

    def check(self, number):
        copies = self.fleet.host(number).copies
        under_way = sum(p.stage not in ENDED for p in copies.progress())
        each, used = PIECES * CHUNK, self.fleet.host(number).memory.of(MemoryPart.COPIES)
        now_us = self.fleet.processes[number].env.clock.monotonic_us()
        if used <= (under_way + len(copies.sessions)) * each:
            self.good_us[number] = now_us
        assert now_us - self.good_us[number] < ON_THEIR_WAY_US
        if not len(copies.sessions):
            self.most["to"] = max(self.most["to"], used)
        if not under_way:
            self.most["from"] = max(self.most["from"], used)


@pytest.mark.parametrize("seed", first(range(3)))
def test_memory_of_scans_and_copies_is_exact_and_blocks_nothing_permanently(seed):
    rng = random.Random(seed)

    @scenario(options=OPTIONS, max_time_s=3600)
    async def steps(fleet):
        for group in GROUPS[1:]:
            for number in range(3):
                await fleet.create(number, group)
        scans, copies = [Scans(fleet, n) for n in range(3)], Copies(fleet)
        for number in range(3):
            await fleet.as_(number, flusher(fleet, number, OPTIONS))
        most = [0]

        def look():
            for number in fleet.alive():
                memory = fleet.host(number).memory
                most[0] = max(most[0], memory.used_bytes)
                assert memory.used_bytes <= BUDGET + SLACK, memory.over_budget_reason
                copies.check(number)
            for one in scans:
                one.check()

        fleet.loop.after_step = look
        expected = dict.fromkeys(GROUPS, 0)
        clients = {(g, c): 0 for g in GROUPS for c in range(4)}
        for _ in range(25):
            for _ in range(rng.randrange(4)):
                one, size = rng.choice(scans), rng.choice([0, 0, 80 * KIB, 400 * KIB])
                scan = one.run(rng.choice(GROUPS), size, rng.choice([10, 1000, 20_000]))
                fleet.spawn(one.number, scan)
            fleet.processes[rng.randrange(3)].delays.compute_us = rng.choice([500, 500, 3_000_000])
            await _copy(fleet, rng)
            await burst(fleet, rng, clients, expected, (0, 1000, 9000))
        for process in fleet.processes:
            process.delays.compute_us = 500
        await fleet.pass_ms(60_000)
        for group in GROUPS:
            await fleet.until(
                lambda g=group: all(fleet.machine(n, g).sums.get("k", 0) == expected[g] for n in range(3)),
                "all entries are applied",
            )  # fmt: skip
            await fleet.as_(3, fleet.host(3).copies.cancel(group))
        await fleet.until(lambda: not fleet.sessions(), "no session is left", 200_000)
        for number in fleet.alive():
            memory = fleet.host(number).memory
            assert (memory.of(MemoryPart.SCANS), memory.of(MemoryPart.COPIES)) == (0, 0)
        assert max(one.held for one in scans) > 0, "flushed rows were held"
        assert sum(one.refused for one in scans) > 0
        assert min(copies.most.values()) >= PIECES * CHUNK, "scans and copies reached their limits"
        assert most[0] > BUDGET // 2

    steps()


async def _copy(fleet, rng):
    """Begin a copy to the fourth server, of a leader that was flushed, or cancel one."""
    group = rng.choice(GROUPS)
    source = fleet.leading(group)
    copies = fleet.host(3).copies
    if fleet.host(3).find(group) is None and not copies.waiting(group) and source is not None:
        await fleet.order(3, source, group=group)
    elif rng.random() < 0.5:
        await fleet.as_(3, copies.cancel(group))
        if (replica := fleet.host(3).find(group)) is not None:
            await fleet.as_(3, fleet.host(3).delete_replica(replica.group))
