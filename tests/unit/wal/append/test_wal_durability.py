"""Nothing acknowledged is lost: power cuts, kill -9, a crash at every file operation."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nyala.common.ids import TabletId
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.raft.messages import Entry, HardState
from tests.enough import enough
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    C,
    Machine,
    Recovered,
    append,
    collected,
    durable,
    entry,
    open_wal,
    vote,
)

ROOT = Path(__file__).parents[4]


@dataclass
class Model:
    """Entries written by each group, and the number of acknowledged ones."""

    log: dict[TabletId, list[Entry]] = field(default_factory=dict)
    acked: dict[TabletId, int] = field(default_factory=dict)
    terms: dict[TabletId, int] = field(default_factory=dict)
    acked_terms: dict[TabletId, int] = field(default_factory=dict)
    first: dict[TabletId, int] = field(default_factory=dict)

    def check(self, recovered: Recovered) -> None:
        """Check that acknowledged entries are correct, and that the rest is a prefix without gaps."""
        for group, written in self.log.items():
            own = recovered.get(group)
            entries = own.entries if own is not None else []
            assert own is None or own.corrupt is None, own.corrupt
            first = entries[0].id.index if entries else 1
            assert first <= self.first.get(group, 1)
            last = first + len(entries) - 1
            assert last >= self.acked.get(group, 0), (group, last, self.acked)
            assert entries == written[first - 1 : last]
            state = own.hard_state if own is not None else None
            term = state.term if state is not None else 0
            assert self.acked_terms.get(group, 0) <= term <= self.terms.get(group, 0)

    def adopt(self, recovered: Recovered) -> None:
        """Continue from the recovered log: lost entries were never acknowledged."""
        for group in self.log:
            own = recovered.get(group)
            last = own.entries[-1].id.index if own is not None and own.entries else 0
            del self.log[group][last:]
            self.acked[group] = last
            self.terms[group] = own.hard_state.term if own and own.hard_state else 0


async def scribble(wal, model, group, rng, count):
    """Append, sometimes with a vote, sometimes with an anchor and a collection."""
    log = model.log.setdefault(group, [])
    for _ in range(count):
        size = rng.choice((1, 1, 3))
        new = [entry(len(log) + 1 + i, rng.randbytes(rng.randrange(300))) for i in range(size)]
        log.extend(new)
        state = None
        if rng.random() < 0.3:
            model.terms[group] = model.terms.get(group, 0) + 1
            state = vote(model.terms[group])
        last, term = len(log), model.terms.get(group, 0)
        assert await append(wal, group, new, state) is None
        model.acked[group] = last
        if state is not None:
            model.acked_terms[group] = term
        if rng.random() < 0.2:
            model.first[group] = max(1, last - 5)
            wal.set_anchor(group, model.first[group])
            wal.collect()


def restarts(seed, *, cut, sync=True):
    """Run several incarnations on one disk, each with a crash, and check the model after each."""

    async def main(loop):
        machine, model, rng = Machine(loop, seed), Model(), random.Random(seed)
        for incarnation in range(4):

            async def work(files, tasks):
                wal, recovered = await open_wal(files, tasks, segment_bytes=3000, sync=sync)
                assert not wal.damage
                model.check(recovered)
                model.adopt(recovered)
                await asyncio.gather(
                    *(scribble(wal, model, g, random.Random(rng.random()), 15) for g in (A, B, C))
                )
                await wal.close()

            if incarnation < 3:
                machine.disk.die_after(rng.randrange(1, 160))
            await machine.live(work)
            (machine.disk.crash if cut else machine.disk.kill)()
        _, recovered = await machine.open(segment_bytes=3000)
        model.check(recovered)
        return sum(model.acked.values())

    return run(main)


@pytest.mark.row("S4.2")
def test_power_failure_loses_nothing_acknowledged():
    acknowledged = sum(restarts(seed, cut=True) for seed in range(12))
    enough(acknowledged > 500, f"{acknowledged} acknowledged entries")


@pytest.mark.row("S4.3")
def test_without_sync_process_kill_loses_nothing():
    acknowledged = sum(restarts(seed, cut=False, sync=False) for seed in range(10))
    enough(acknowledged > 200, f"{acknowledged} acknowledged entries")


@pytest.mark.row("S4.3")
def test_without_sync_power_failure_loses_a_tail_without_hole():
    lost = 0

    async def main(loop):
        nonlocal lost
        for seed in range(40):
            machine = Machine(loop, seed)
            wal, _ = await machine.open(sync=False, segment_bytes=4000)
            for i in range(1, 31):
                await durable(wal, A, [entry(i, bytes([i]) * 600)])
            machine.disk.crash()
            wal, recovered = await machine.open(sync=False, segment_bytes=4000)
            assert not wal.damage
            own = recovered.get(A)
            found = own.entries if own is not None else []
            assert found == [entry(i, bytes([i]) * 600) for i in range(1, len(found) + 1)]
            lost += 30 - len(found)

    run(main)
    enough(lost > 0, "entries lost without sync")


def steps_of(work, prepare=None):
    """Run `work` once undisturbed; return the number of its changing file operations."""

    async def main(loop):
        machine = Machine(loop)
        machine.rng = random.Random(0)
        if prepare is not None:
            await machine.live(prepare)
        before = machine.disk.operations
        assert await machine.live(work)
        return machine.disk.operations - before

    return run(main)


def crash_at_each_step(work, check, prepare=None):
    """Crash in each file operation of `work`, by power failure and by kill; `check` the recovered log."""
    steps = steps_of(work, prepare)
    assert steps > 8

    async def main(loop, step, draw):
        machine, cut = Machine(loop, 10 * step + draw), draw != 0
        machine.rng = random.Random(0)  # the same delays at each step; another draw of what is torn
        if prepare is not None:
            await machine.live(prepare)
        machine.disk.die_after(step)
        assert not await machine.live(work)
        (machine.disk.crash if cut else machine.disk.kill)()
        for _ in range(2):  # a second recovery has the same result
            wal, recovered = await machine.open(segment_bytes=1000)
            assert not wal.damage
            check(recovered)
            names = machine.disk.mount().list("/d/wal")
            assert not [n for n in names if not n.endswith(".wal")]
            machine.disk.crash()

    async def all_steps(loop):
        for step in range(1, steps + 1):
            for draw in range(4):  # one kill, three power cuts
                await main(loop, step, draw)

    run(all_steps)


@pytest.mark.row("S4.17", "S4.18")
def test_crash_in_any_step_of_open_roll_and_close_loses_nothing():
    acked: list[int] = []

    async def work(files, tasks):
        acked.clear()
        wal, _ = await open_wal(files, tasks, segment_bytes=1000)
        for i in range(1, 16):
            await durable(wal, A, [entry(i, bytes(100))], vote(i))
            acked.append(i)
        assert wal.stats().rolls >= 2
        await wal.close()

    def check(recovered):
        found = [e.id.index for e in recovered[A].entries] if A in recovered else []
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= len(acked)

    crash_at_each_step(work, check)


@pytest.mark.row("S4.24")
def test_crash_in_any_step_of_collection_keeps_needed_entries():
    async def prepare(files, tasks):
        wal, _ = await open_wal(files, tasks, segment_bytes=1000)
        await durable(wal, B, [], vote(7))
        for i in range(1, 31):
            await durable(wal, A, [entry(i, bytes(100))])
        await wal.close()

    async def work(files, tasks):
        wal, _ = await open_wal(files, tasks, segment_bytes=1000)
        wal.set_anchor(A, 25)
        assert await collected(wal) >= 2
        await wal.close()

    def check(recovered):
        found = [e.id.index for e in recovered[A].entries]
        assert found == list(range(found[0], 31))
        assert found[0] <= 25
        assert recovered[B].hard_state == HardState(7)

    crash_at_each_step(work, check, prepare)


@pytest.mark.row("S4.21")
def test_crash_in_any_step_of_recovery_does_not_change_its_result():
    async def prepare(files, tasks):
        wal, _ = await open_wal(files, tasks, segment_bytes=1000)
        await durable(wal, A, [entry(i, bytes(100)) for i in range(1, 9)])
        append(wal, A, [entry(i, bytes(100)) for i in range(9, 13)])
        files.disk.die_after(1)  # in the append of the second round
        await loop_forever()

    async def loop_forever():
        await asyncio.get_running_loop().create_future()

    async def work(files, tasks):
        wal, _ = await open_wal(files, tasks, segment_bytes=1000)
        await wal.close()

    def check(recovered):
        found = [e.id.index for e in recovered[A].entries]
        assert 8 <= len(found) <= 12
        assert found == list(range(1, len(found) + 1))

    crash_at_each_step(work, check, prepare)


WRITER = """
import asyncio, sys
sys.path[:0] = [{root!r}]
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from tests.unit.wal.support.wal_harness import A, B, durable, entry, open_wal

async def write(wal, group, name, first):
    for i in range(first, 100_000):
        await durable(wal, group, [entry(i, b"x" * (i % 400))])
        print(name, i, flush=True)

async def main():
    wal, recovered = await open_wal(SystemFiles(), LoopTasks(), directory=sys.argv[1], segment_bytes=20_000)
    last = {{g: r.entries[-1].id.index for g, r in recovered.items()}}
    await asyncio.gather(write(wal, A, "A", last.get(A, 0) + 1), write(wal, B, "B", last.get(B, 0) + 1))

asyncio.run(main())
"""


@pytest.mark.row("S4.2")
def test_kill_9_loses_nothing_acknowledged(tmp_path):
    """A real process on a real file system, killed in the middle of rounds and rolls."""
    acked = {"A": 0, "B": 0}
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for kill in range(3):
        command = [sys.executable, "-c", WRITER.format(root=str(ROOT)), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
            assert process.stdout is not None
            for _ in range(150 + 70 * kill):
                name, index = process.stdout.readline().split()
                acked[name] = int(index)
            process.send_signal(signal.SIGKILL)
            for line in process.stdout.read().splitlines():
                if len(parts := line.split()) == 2:
                    acked[parts[0]] = int(parts[1])

    async def reopen():
        tasks = LoopTasks()
        wal, recovered = await open_wal(SystemFiles(), tasks, directory=str(tmp_path))
        assert wal.stats().segments > 4
        await wal.close()
        await tasks.close()
        return recovered, wal.damage

    recovered, damage = asyncio.run(reopen())
    assert not damage
    for name, group in (("A", A), ("B", B)):
        found = recovered[group].entries
        assert len(found) >= acked[name] > 100
        assert found == [entry(i, b"x" * (i % 400)) for i in range(1, len(found) + 1)]
