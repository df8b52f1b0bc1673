"""Restarts and absences: acknowledged writes stay, absent members catch up, the log is released."""

import pytest

from nyala.common.ids import OpId, TabletId
from nyala.common.options import Options
from nyala.replica.multiraft.event_loop import MAX_FLUSHED_GROUPS
from tests.unit.replica.support.by_hand import OTHER
from tests.unit.replica.support.replica_support import GROUP, scenario

TINY = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 30, flush_log_bytes=1 << 30)


@pytest.mark.row("S4.34")
@scenario()
async def test_reopened_replica_loads_its_log_before_sending(fleet):
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    await fleet.as_(1, fleet.replica(1).flush())
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    before = fleet.replica(1).status()
    fleet.processes[1].kill(power_cut=True)
    fleet.network.partition(["s1"], ["s0", "s2"])
    await fleet.restart(1)
    status = fleet.replica(1).status()
    assert status.last == before.last, "the log is loaded before messages are sent"
    assert status.durable == before.last.index
    assert status.term == before.term
    assert status.flush_op == OpId(status.flush_op.term, 6)
    assert fleet.machine(1).sums == {"k": 5}, "the files are loaded as of their cut"
    fleet.network.heal()
    await fleet.settled()
    assert fleet.machine(1).sums == {"k": 10}
    assert fleet.machine(1).runs == 5


@pytest.mark.parametrize("step", range(1, 40, 2))
def test_crash_at_any_file_operation_keeps_acknowledged_writes(step):
    @scenario(servers=1, options=Options(wal_segment_mb=1, flush_bytes=12), start=False)
    async def steps(fleet):
        await fleet.boot(0)
        process = fleet.processes[0]
        acknowledged = 0
        if step % 4 == 3:  # crash while it is made, as well as later
            process.disk.die_after(step)
        made = fleet.spawn(0, fleet.create(0, GROUP))
        await fleet.until(lambda: made or not process.alive, "made or dead")
        if process.alive:
            process.disk.die_after(step)
            for n in range(1, 40):
                await fleet.until(lambda: not process.alive or fleet.leading() == 0, "leads")
                if not process.alive:
                    break
                answer = fleet.spawn(0, fleet.call(0, b"k 1", sequence=n))
                await fleet.until(lambda a=answer: a or not process.alive, "answered or dead")
                if answer:
                    acknowledged = int(answer[0].result)
        process.kill()
        process.power_cut()
        await fleet.restart(0)
        if fleet.host(0).find(GROUP) is None:
            assert acknowledged == 0
            await fleet.create(0, GROUP)
        again = await fleet.write(b"k 0", sequence=1000)
        assert int(again.result) in (acknowledged, acknowledged + 1)

    steps()


@scenario(options=TINY)
async def test_returning_follower_catches_up_from_log(fleet):
    leader = await fleet.leader()
    absent = (leader + 1) % 3
    fleet.processes[absent].kill()
    big = b"k 1" + b" " * 100_000
    for _ in range(60):  # six segments, more than any cache holds
        await fleet.write(big)
    for n in fleet.alive():
        await fleet.as_(n, fleet.replica(n).flush())
    await fleet.pass_ms(3000)
    leader = await fleet.leader()
    assert fleet.host(leader).wal.stats().segments > 5, "the configured follower still needs them"
    await fleet.restart(absent)
    await fleet.settled()
    assert fleet.machine(absent).sums == {"k": 60}
    await fleet.pass_ms(3000)
    leader = await fleet.leader()
    assert fleet.host(leader).wal.stats().segments <= 3, "the segments are not needed any more"


@scenario(options=TINY)
async def test_new_leader_has_entries_for_returning_follower(fleet):
    leader = await fleet.leader()
    absent = (leader + 1) % 3
    fleet.processes[absent].kill()
    big = b"k 1" + b" " * 100_000
    for _ in range(60):
        await fleet.write(big)
    for n in fleet.alive():
        await fleet.as_(n, fleet.replica(n).flush())
    await fleet.pass_ms(3000)
    successor = next(n for n in fleet.alive() if n != leader)
    assert fleet.host(successor).wal.stats().segments > 5, (
        "a possible next leader keeps the segments"
    )
    fleet.processes[leader].kill()
    await fleet.restart(absent)
    await fleet.settled()
    assert await fleet.leader() == successor, "only this server has all entries"
    assert fleet.machine(absent).sums == {"k": 60}


@scenario(groups=(GROUP, OTHER), options=Options(wal_segment_mb=1, wal_retain_mb=2))
async def test_idle_group_does_not_anchor_log_indefinitely(fleet):
    await fleet.write(b"k 7", group=OTHER)
    big = b"k 1" + b" " * 100_000
    for _ in range(80):
        await fleet.write(big)
    await fleet.pass_ms(5000)
    leader = await fleet.leader()
    assert fleet.replica(leader, OTHER).status().flush_op.index > 0, "the idle group was flushed"
    assert fleet.host(leader).wal.stats().segments <= 4
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
    assert (await fleet.write(b"k 0", group=OTHER, sequence=999)).result == b"7"


QUIET = tuple(TabletId(f"{n:032x}") for n in range(500, 560))


@scenario(servers=1, groups=(GROUP, *QUIET), options=Options(wal_segment_mb=1, wal_retain_mb=2))
async def test_idle_groups_that_anchor_log_are_flushed_with_bounded_concurrency(fleet):
    for group in QUIET:
        await fleet.write(b"k 7", group=group)
    flushing: list[float] = []
    for group in QUIET:
        machine = fleet.machine(0, group)
        machine.prepare_flush = counted(machine.prepare_flush, flushing, fleet.loop)
    big = b"k 1" + b" " * 100_000
    for _ in range(80):
        await fleet.write(big)
    wal = fleet.host(0).wal
    await fleet.until(lambda: wal.stats().segments <= 4, "collected", timeout_ms=10_000)
    assert {fleet.replica(0, g).status().flush_op.index > 0 for g in QUIET} == {True}
    assert len(flushing) == len(QUIET)
    first = [at for at in flushing if at < flushing[0] + 0.5]
    assert len(first) <= MAX_FLUSHED_GROUPS < len(QUIET)


def counted(prepare, times, loop):
    """`prepare` that records the time of its call."""

    def noted(flush_point):
        times.append(loop.time())
        return prepare(flush_point)

    return noted
