"""Damaged and lost files, a failed log, a full disk: their effects on replicas."""

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    NyalaError,
    OutcomeUnknown,
    Unavailable,
)
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import TabletId
from nyala.replica.status import State
from tests.unit.replica.support.by_hand import OTHER, vote
from tests.unit.replica.support.replica_support import GROUP, scenario


def stored(process, part):
    """Paths of the files of a process in one of its directories."""
    names = process.disk.names.seen
    return sorted(f"{d}/{n}" for d in names if d.startswith(f"/data/{part}") for n in names[d])


@pytest.mark.parametrize("part", ["superblock", "cmeta", "data/" + GROUP])
def test_damaged_file_fails_replica_without_votes_or_reads(part):
    @scenario(groups=(GROUP, OTHER))
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.write(b"k 1", group=OTHER)
        await fleet.settled()
        await fleet.as_(0, fleet.replica(0).flush())
        process = fleet.processes[0]
        process.kill()
        path = next(p for p in stored(process, part) if OTHER not in p)
        size = len(process.disk.names.get(path).content)
        for offset in range(0, size, 7):
            process.disk.flip_bit(path, offset)
        await fleet.restart(0)
        replica = fleet.replica(0)
        assert replica.state is State.FAILED
        assert replica.status().error
        assert path in stored(process, part), "the files are kept"
        with pytest.raises(Unavailable):
            await fleet.as_(0, fleet.call(0, b"k 1"))
        before = fleet.loop.trace.counts["peer_sent"]
        batch = vote(GROUP, to=0)
        fleet.deliver(0, batch)
        await fleet.pass_ms(1)
        assert fleet.loop.trace.counts["peer_sent"] - before <= 1
        assert (await fleet.write(b"k 1", group=OTHER)).result == b"2"
        assert (await fleet.write(b"k 1")).result == b"2"

    steps()


@pytest.mark.parametrize("lost_part", ["superblock", "cmeta"])
def test_lost_file_is_damage_not_a_new_replica(lost_part):
    @scenario()
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        process = fleet.processes[0]
        process.kill()
        process.disk.mount().remove(f"/data/{lost_part}/{GROUP}")
        await fleet.restart(0)
        assert fleet.replica(0).state is State.FAILED
        with pytest.raises(AlreadyPresent):
            await fleet.create(0, GROUP)

    steps()


@scenario(groups=(GROUP, OTHER))
async def test_failed_log_fails_every_replica_and_process_keeps_running(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    fleet.processes[leader].disk.faults.sync_eio_rate = 1.0
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=50))
    await fleet.until(lambda: answer, "an answer")
    assert isinstance(answer[0], OutcomeUnknown)
    assert [r.state for r in fleet.host(leader).all()] == [State.FAILED] * 2
    with pytest.raises(Unavailable, match="log is broken"):
        await fleet.create(leader, TabletId("d" * 32))
    others = [n for n in range(3) if n != leader]
    new = await fleet.leader(among=others)
    result = (await fleet.as_(new, fleet.call(new, b"k 1", sequence=50))).result
    assert result == b"2"
    assert fleet.processes[leader].alive


@scenario()
async def test_full_disk_throttles_writes_until_space_returns(fleet):
    leader = await fleet.leader()
    assert (await fleet.write(b"k 1", sequence=1)).result == b"1"
    disk = fleet.processes[leader].disk
    disk.faults.capacity_bytes = disk.used_bytes()
    big = b"k 1" + b" " * 100_000
    full = False
    for n in range(2, 40):
        answer = fleet.spawn(leader, fleet.call(leader, big, sequence=n, timeout_ms=500))
        await fleet.until(lambda a=answer: a, "an answer")
        full = full or isinstance(answer[0], NyalaError)
    assert full
    assert not [r.error for n in range(3) for r in fleet.host(n).all() if r.error]
    await fleet.pass_ms(12_000)  # beyond the clock's ceiling, which cannot be saved either
    disk.faults.capacity_bytes = None
    for n in range(2, 40):
        assert int((await fleet.write(big, sequence=n)).result) <= 39
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 39}] * 3


@scenario(servers=1)
async def test_unsaved_clock_is_not_used(fleet):
    leader = await fleet.leader()
    disk = fleet.processes[0].disk
    clock = fleet.processes[0].server.clock
    await fleet.pass_ms(3000)  # now it counts as a single server, and follows its wall clock
    disk.faults.capacity_bytes = disk.used_bytes()
    fleet.processes[0].clock.jump(60_000_000)
    now = from_micros(fleet.processes[0].clock.wall_us())
    for _ in range(2):
        with pytest.raises(Unavailable, match="ceiling"):
            await fleet.as_(leader, fleet.replica(0).read_point(now, 1000))
        with pytest.raises(Unavailable, match="ceiling"):
            await fleet.as_(leader, fleet.call(leader, b"k 1", seen=now))
    assert clock.peek() < int(fleet.processes[0].env.files.read("/data/hybrid_clock").split()[0])
    at = await fleet.as_(leader, fleet.replica(0).read_point(None, 1000))
    assert at < now, "reads below the saved ceiling continue"
    named = "clock ceiling cannot be saved: [Errno 28]"
    assert fleet.host(0).unavailable_reason.startswith(named)
    status = fleet.replica(0).status()
    assert (status.state, status.error.startswith(named)) == (State.RUNNING, True)
    disk.faults.capacity_bytes = None
    at = await fleet.as_(leader, fleet.replica(0).read_point(now, 1000))
    assert at < int(fleet.processes[0].env.files.read("/data/hybrid_clock").split()[0])
    assert clock.peek() >= at
    assert fleet.host(0).unavailable_reason == fleet.replica(0).status().error == ""
    assert (await fleet.write(b"k 1")).stamp > at
