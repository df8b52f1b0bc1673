"""Anchors of the shared log are bounded: dead members, failed replicas, lost majorities."""

from nyala.replica.status import State
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of
from tests.unit.replica.support.retention_support import SMALL, STRICT, beside, busy


@scenario(options=SMALL)
async def test_entries_needed_by_dead_member_are_moved_and_available_on_return(
    fleet,
):
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.processes[2].kill()
    await fleet.write(b"a 2")
    assert max(await busy(fleet, 100)) < 8
    assert fleet.host(0).wal.stats().moved > 0
    await fleet.restart(2)
    await fleet.settled()
    assert fleet.machine(2).sums == {"a": 3}
    assert not fleet.replica(2).error


@scenario(options=SMALL)
async def test_moved_entries_are_available_after_restart(fleet):
    await beside(fleet)
    for _ in range(5):
        await fleet.write(b"a 1")
    await fleet.settled()
    fleet.processes[2].kill()
    for _ in range(5):
        await fleet.write(b"a 1")
    assert max(await busy(fleet)) < 8
    for n in (0, 1):
        fleet.processes[n].kill(power_cut=True)
    for n in (0, 1, 2):
        await fleet.boot(n)
    await fleet.write(b"a 1")
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"a": 11}] * 3
    assert max(await busy(fleet)) < 8


@scenario(options=SMALL)
async def test_failed_replica_does_not_anchor_log_and_continues_after_restart(fleet):
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.replica(0).fail(OSError("a page of a data file cannot be read"))
    assert max(await busy(fleet)) < 8
    fleet.processes[0].kill()
    await fleet.boot(0)
    await fleet.write(b"a 1")
    await fleet.settled()
    assert fleet.machine(0).sums == {"a": 2}


@scenario(servers=4, options=SMALL)
async def test_group_without_majority_keeps_entries_without_anchoring_log(fleet):
    on = (0, 3)
    await beside(fleet, on)
    await fleet.write(b"a 1")
    await fleet.settled()
    if await fleet.leader() != 0:
        fleet.replica(await fleet.leader()).transfer(uuid_of(0))
        await fleet.until(lambda: fleet.leading() == 0, "0 leads")
    for n in (1, 2):
        fleet.processes[n].kill()
    fleet.spawn(0, fleet.call(0, b"a 2", timeout_ms=100))
    assert max(await busy(fleet, on=on)) < 8
    assert fleet.host(0).wal.stats().moved > 0
    fleet.processes[0].kill(power_cut=True)
    await fleet.boot(0)
    await fleet.boot(1)
    await fleet.write(b"a 4")
    await fleet.settled()
    assert fleet.machine(0).sums == {"a": 7}, "durable entries that were never committed are lost"


@scenario(options=STRICT)
async def test_member_beyond_entry_limit_needs_copy_and_log_is_collected(fleet):
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    if await fleet.leader() == 2:
        fleet.replica(2).transfer(uuid_of(0))
        await fleet.until(lambda: fleet.leading() == 0, "a remaining member leads")
        await fleet.settled()
    fleet.processes[2].kill()
    await fleet.write(b"a 2")
    assert max(await busy(fleet)) < 8
    leader = await fleet.leader()
    needs = [p.needs_copy for p in fleet.replica(leader).node.status().peers]
    assert sorted(needs) == [False, True]
    assert not fleet.host(leader).wal.held_bytes()
    assert not fleet.host(leader).wal.stats().moved
    await fleet.restart(2)
    await fleet.pass_ms(5000)
    status = fleet.replica(leader).node.status()
    assert [p.needs_copy for p in status.peers if p.match < status.last.index] == [True]
    await fleet.write(b"a 4")


@scenario(options=STRICT)
async def test_failed_replica_beyond_entry_limit_is_permanently_failed(fleet):
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.replica(0).fail(OSError("a page of a data file cannot be read"))
    assert max(await busy(fleet)) < 8
    fleet.processes[0].kill()
    await fleet.boot(0)
    assert fleet.replica(0).state is State.FAILED
    assert "has released entries" in str(fleet.replica(0).error)
    assert "cannot be read" in str(fleet.replica(0).error)
    await fleet.write(b"a 1")
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert fleet.replica(0).state is State.TOMBSTONED
