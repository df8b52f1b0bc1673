"""A server reports its reached limits to ksck while they last: memory, log, disk."""

import pytest
from msgspec.structs import replace

from nyala.admin.anchors_page import anchors_page
from nyala.common.errors import OutcomeUnknown, Unavailable
from nyala.common.options import Options
from nyala.replica.memory import MemoryPart
from tests.unit.replica.support.replica_support import GROUP, scenario
from tests.unit.replica.support.retention_support import BIG, SMALL, STRICT

KIB = 1 << 10


@scenario(options=Options(wal_segment_mb=1, memory_budget_bytes=64 * KIB))
async def test_memory_over_budget_is_reported_with_largest_consumers(fleet):
    await fleet.write(b"k 1")
    host = fleet.host(0)
    assert host.problems() == []
    with host.memory.hold(MemoryPart.SCANS, 3 << 20):
        (problem,) = host.problems()
        assert "scans 3" in problem
        assert "memory_budget_bytes" in problem
    assert host.problems() == []


@scenario(options=STRICT)
async def test_log_kept_for_dead_member_beyond_limit_is_reported(fleet):
    host = fleet.host(0)
    host.wal.held_bytes = lambda: {GROUP: 5}
    assert host.problems() == [], (
        "a log of its minimum size is not collected, so no entries are released"
    )
    for _ in range(20):
        await fleet.write(BIG)
    (problem,) = [p for p in host.problems() if "wal_retain_for_peers_mb (0)" in p]
    assert "5 bytes for members that are away" in problem
    del host.wal.held_bytes
    await fleet.pass_ms(3_000)
    assert host.problems() == []


@scenario(options=replace(SMALL, wal_retain_for_peers_mb=3))
async def test_log_not_shortened_by_flushes_is_reported_with_tablet(fleet):
    for number in range(3):
        fleet.machine(number).prepare_flush = lambda flush_point: None
    for _ in range(60):
        await fleet.write(BIG)
    await fleet.pass_ms(3000)
    (problem,) = fleet.host(0).problems()
    assert "wal_retain_mb and wal_retain_for_peers_mb (5 together)" in problem
    assert f"its oldest segment stays for {GROUP}" in problem
    for number in range(3):
        del fleet.machine(number).prepare_flush
    await fleet.write(b"a 1")
    await fleet.until(lambda: not fleet.host(0).problems(), "flushed, and so collected", 60_000)


@scenario(options=replace(SMALL, wal_reserve_mb=8))
async def test_full_disk_is_reported_with_reserve_until_space_returns(fleet):
    await fleet.write(b"a 1")
    follower = (await fleet.leader() + 1) % 3
    faults = fleet.processes[follower].disk.faults
    faults.capacity_bytes = fleet.processes[follower].disk.used_bytes() + (8 << 20)
    host = fleet.host(follower)
    for _ in range(12):
        await fleet.write(BIG)
    await fleet.until(lambda: host.problems(), "the limit is reported")
    (problem,) = host.problems()
    assert "the log cannot grow, and writes are refused here" in problem
    assert "wal_reserve_mb" in problem
    faults.capacity_bytes = None
    await fleet.until(lambda: not host.problems(), "the limit is no longer reported")
    await fleet.settled()


@scenario(options=replace(SMALL, wal_reserve_mb=8))
async def test_write_that_full_disks_hold_up_ends_with_its_cause(fleet):
    await fleet.write(b"a 1")
    leader = await fleet.leader()
    for process in fleet.processes:
        process.disk.faults.capacity_bytes = process.disk.used_bytes()
    answers = [
        fleet.spawn(leader, fleet.call(leader, BIG, sequence=100 + n, timeout_ms=1_000))
        for n in range(12)
    ]
    await fleet.until(lambda: all(answers), "each write has ended")
    unknown = [str(err) for (err,) in answers if isinstance(err, OutcomeUnknown)]
    assert unknown
    assert all("the log of this server cannot grow" in message.lower() for message in unknown)
    for process in fleet.processes:
        process.disk.faults.capacity_bytes = None
    await fleet.settled()


@pytest.mark.row("A18")
@scenario(options=STRICT)
async def test_page_of_anchors_shows_entries_that_are_retained(fleet):
    for _ in range(3):
        await fleet.write(b"k 1")
    host = fleet.host(0)
    host.wal.set_anchor(GROUP, 2, 3)
    ((group, first, own, _, applied),) = anchors_page(host).rows
    assert (group, first, own) == (GROUP, "2", "3")
    assert applied == str(host.get(GROUP).status().applied.index)
    host.wal.release(GROUP)
    assert anchors_page(host).rows[0][1:3] == ("none", "none")
    with pytest.raises(Unavailable, match="is starting"):
        anchors_page(None)
