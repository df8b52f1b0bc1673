"""Quiescence under faults of every kind: no acknowledged write is lost, no group stays quiescent forever."""

from collections import Counter

import pytest

from nyala.common.ids import TabletId
from nyala.replica.status import WriteOutcome
from tests.enough import enough
from tests.salt import generator
from tests.selected import first
from tests.sim.checkers import raft_invariants
from tests.sim.world.network import NetFaults
from tests.unit.replica.support.replica_support import scenario

GROUPS = [TabletId(f"{n:032x}") for n in range(6)]
SEEDS = range(4)
SECONDS = 40
KINDS = ("kill", "power", "pause", "partition", "one way", "network", "blip")


class RandomRun:
    """One run with faults and occasional writes to groups."""

    def __init__(self, fleet, seed):
        self.fleet = fleet
        self.rng = generator(seed)
        self.asked: Counter[TabletId] = Counter()
        self.acknowledged: Counter[TabletId] = Counter()
        self.answers: list[tuple[TabletId, list[object]]] = []
        self.kinds: list[str] = []  # remaining faults: each occurs as often as the others
        self.slept = 0

    async def run(self):
        fleet = self.fleet
        for _ in range(SECONDS * 20):
            await fleet.pass_ms(50)
            self.look()
            draw = self.rng.random()
            if draw < 0.04:
                self.write(self.rng.choice(GROUPS))
            elif draw < 0.055:
                await self.fault()
            elif draw < 0.075:
                await self.mend()

    def look(self):
        """Check all invariants, and count quiescent members."""
        fleet = self.fleet
        for group in GROUPS:
            nodes = [r.node for n in fleet.alive() if (r := fleet.host(n).find(group)) is not None]
            raft_invariants.check_group(node for node in nodes if node is not None)
            self.slept += sum(1 for node in nodes if node is not None and node.quiesced)
        for group, answer in self.answers:
            self.acknowledged[group] += sum(isinstance(a, WriteOutcome) for a in answer)
        self.answers = [a for a in self.answers if not a[1]]

    def write(self, group):
        number = self.fleet.leading(group)
        if number is not None:
            self.asked[group] += 1
            call = self.fleet.call(number, b"k 1", group=group, timeout_ms=2000)
            self.answers.append((group, self.fleet.spawn(number, call)))

    async def fault(self):
        fleet, rng = self.fleet, self.rng
        self.kinds = self.kinds or rng.sample(KINDS, len(KINDS))
        kind = self.kinds.pop()
        name = rng.randrange(3)
        process = fleet.processes[name]
        others = [f"s{n}" for n in range(3) if n != name]
        if kind in ("kill", "power") and process.alive:
            process.kill(power_cut=kind == "power")
            if rng.random() < 0.5:  # back before its absence is detected
                await fleet.restart(name)
        elif kind == "pause" and process.alive:
            process.pause()
        elif kind == "partition":
            fleet.network.partition([f"s{name}"], rng.choice([others, others[:1]]))
        elif kind == "one way":
            fleet.network.cut([f"s{name}"], others)
        elif kind == "network":
            fleet.network.faults = NetFaults(
                loss_rate=rng.choice([0.0, 0.1, 0.3]),
                duplicate_rate=rng.choice([0.0, 0.2]),
                straggler_rate=rng.choice([0.0, 0.1]),
                straggler_us=rng.choice([50_000, 600_000]),
            )
        elif kind == "blip":
            fleet.network.partition([f"s{name}"], others)
            await fleet.pass_ms(rng.choice([300, 500, 700]))
            fleet.network.heal()

    async def mend(self):
        self.fleet.network.heal()
        for number, process in enumerate(self.fleet.processes):
            if not process.alive:
                await self.fleet.restart(number)
            elif process.incarnation.held:
                process.resume()

    async def heal(self):
        """After healing every group accepts a write, agrees and quiesces; a lost server wakes its groups."""
        fleet = self.fleet
        await self.mend()
        fleet.network.faults = NetFaults()
        await fleet.pass_ms(3000)
        await self.progress()
        await self.all_asleep()
        dead = self.rng.randrange(3)
        fleet.processes[dead].kill()
        await fleet.pass_ms(2500)
        await self.progress()
        await fleet.restart(dead)
        await self.all_asleep()
        group = self.rng.choice(GROUPS)
        leader = await fleet.leader(group)
        fleet.replica(leader, group).fail(OSError("a broken machine"))
        await fleet.pass_ms(2500)
        await self.progress()
        fleet.processes[leader].kill()
        await fleet.restart(leader)
        await self.all_asleep()
        self.look()
        for group in GROUPS:
            sums = {fleet.machine(n, group).sums["k"] for n in range(3)}
            assert len(sums) == 1
            assert self.acknowledged[group] <= sums.pop() <= self.asked[group]

    async def progress(self):
        """Every group takes a write at once."""
        for group in GROUPS:
            await self.fleet.until(
                lambda g=group: self.fleet.leading(g) is not None, f"{group} is led", 100
            )
            assert isinstance(await self.fleet.write(b"k 1", group=group), WriteOutcome)
            self.asked[group] += 1
            self.acknowledged[group] += 1

    async def all_asleep(self):
        """Wait until every group is quiescent on every server."""
        fleet = self.fleet
        await fleet.until(
            lambda: all(fleet.replica(n, g).node.quiesced for n in range(3) for g in GROUPS),
            "all groups are quiescent",
        )


@pytest.mark.parametrize("seed", first(SEEDS))
def test_no_group_stays_quiesced_forever_and_no_acknowledged_write_is_lost(seed):
    @scenario(groups=GROUPS)
    async def steps(fleet):
        random_run = RandomRun(fleet, seed)
        await random_run.run()
        await random_run.heal()
        enough(random_run.acknowledged.total() > 10, "writes")
        enough(random_run.slept > 1000, "quiescent members")

    steps()
