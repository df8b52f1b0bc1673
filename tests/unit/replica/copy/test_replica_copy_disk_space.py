"""Disk space of copies is bounded at source and target; copies beyond the bound wait and report it."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.copy.quota import REFUSED_TTL_US, CopyQuota
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_support import GROUP, uuid_of

OTHER, THIRD = TabletId("b" * 32), TabletId("c" * 32)
SPREAD = {GROUP: 0, OTHER: 1, THIRD: 2}
ROOM = 4000
"""Bytes of disk: one copy of slightly over 3000 bytes fits."""
NARROW = Options(
    wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=700, copy_rate_bytes=500,
    copy_staged_bytes=ROOM, copy_retry_ms=60_000,
)  # fmt: skip


def room(limit=100):
    clock: Any = SimpleNamespace(now_us=0, monotonic_us=lambda: clock.now_us)
    return CopyQuota(limit, clock), clock


def test_copy_admission_is_first_come_first_served():
    line, _ = room()
    assert line.admit("a", 60)
    assert not line.admit("large", 90)
    assert not line.admit("small", 10), "a copy that fits waits for the one queued before it"
    assert (line.used_bytes, line.waiting) == (60, 2)
    line.release("a")
    assert not line.admit("small", 10)
    assert line.admit("large", 90)
    assert line.admit("small", 10)
    assert (line.used_bytes, line.waiting) == (100, 0)


def test_single_copy_of_any_size_is_admitted():
    line, _ = room()
    assert line.admit("huge", 1000)
    assert not line.admit("tiny", 1)
    line.release("huge")
    assert line.admit("tiny", 1)
    assert not line.admit("huge", 1000)


def test_restarted_copy_is_counted_once():
    line, _ = room()
    assert line.admit("a", 60)
    assert line.admit("a", 70)
    assert line.used_bytes == 70
    assert not line.admit("large", 90)
    assert line.admit("a", 60), "a restarted copy keeps its place"
    line.release("large")
    assert line.admit("b", 30)
    assert not line.admit("a", 80), "a copy that has grown waits without its reservation"
    assert (line.used_bytes, line.waiting) == (30, 1)


def test_source_refusal_is_remembered_for_a_time():
    kept, clock = room()
    kept.reserve("a", 60)
    assert not kept.refusing
    with pytest.raises(Throttled, match=r"60 bytes.*copy_staged_bytes is 100") as refused:
        kept.reserve("b", 50)
    assert int(refused.value.details["retry_after_ms"]) > 0
    assert kept.used_bytes == 60
    assert kept.refusing
    clock.now_us += REFUSED_TTL_US
    assert not kept.refusing
    kept.release("a")
    kept.reserve("b", 50)
    assert kept.used_bytes == 50


async def several(fleet, led):
    """Create flushed groups that are led by these servers."""
    for group, source in led.items():
        if group != GROUP:
            for number in range(fleet.members):
                await fleet.create(number, group)
        await fleet.write(b"k 1", group=group)
        if await fleet.leader(group) != source:
            fleet.replica(await fleet.leader(group), group).transfer(uuid_of(source))
            await fleet.until(
                lambda g=group, n=source: fleet.leading(g) == n, "the requested server leads"
            )
        await fleet.as_(source, fleet.replica(source, group).flush())


def shown(fleet, number, name):
    registry = fleet.processes[number].server.metrics.registry
    return registry.get_sample_value(f"nyala_{name}")


@scenario(options=NARROW)
async def test_copies_beyond_limit_wait_without_resources_and_continue(fleet):
    await several(fleet, SPREAD)
    for group, source in SPREAD.items():
        await fleet.order(3, source, group=group)
    host = fleet.host(3)
    await fleet.until(lambda: host.copies.quota.waiting == 2, "two wait")

    def held():
        return sorted(shown(fleet, n, "copy_held_bytes") > 3000 for n in range(3))

    await fleet.until(
        lambda: held() == [False, False, True], "their sources hold nothing for those"
    )
    (problem,) = host.problems()
    assert "2 copies to this server wait" in problem
    assert f"copy_staged_bytes is {ROOM}" in problem
    assert 3000 < shown(fleet, 3, "copy_staged_bytes") <= ROOM
    assert shown(fleet, 3, "copy_waiting_count") == 2

    def bounded():
        files = fleet.processes[3].env.files
        folders = [f"/data/copy/{n}" for n in files.list("/data/copy")]
        return sum(files.size(f"{d}/{n}") for d in folders for n in files.list(d))

    most = [0]
    fleet.loop.after_step = lambda: most.append(bounded())
    for group in SPREAD:
        await fleet.copied(3, group=group)
    fleet.loop.after_step = lambda: None
    assert 3000 < max(most) <= ROOM
    assert (host.copies.quota.used_bytes, host.copies.quota.waiting) == (0, 0)
    assert host.problems() == []
    assert [fleet.machine(3, g).sums for g in SPREAD] == [{"k": 1}] * 3


@scenario(options=NARROW)
async def test_cancelled_waiting_copy_admits_the_next(fleet):
    await several(fleet, SPREAD)
    await fleet.order(3, 0, group=GROUP)
    await fleet.until(lambda: fleet.stage(3) is CopyStage.FILES, "the first one is let in")
    host = fleet.host(3)
    for group, waiting in ((OTHER, 1), (THIRD, 2)):
        await fleet.order(3, SPREAD[group], group=group)
        await fleet.until(lambda n=waiting: host.copies.quota.waiting == n, "the copy waits")
    await fleet.as_(3, host.copies.cancel(OTHER))
    await fleet.as_(3, host.copies.cancel(GROUP))
    await fleet.copied(3, group=THIRD)
    assert host.copies.quota.used_bytes == 0
    assert fleet.leftovers(3, OTHER) == []


@scenario(servers=5, options=NARROW)
async def test_source_at_log_limit_is_retried_and_reported(fleet):
    await several(fleet, {GROUP: 0, OTHER: 0})
    sessions, offers = fleet.host(0).copies.sessions, []
    begin = sessions.begin

    async def noted(*args, **more):
        offers.append(await begin(*args, **more))
        return offers[-1]

    sessions.begin = noted
    await fleet.order(3, 0, group=GROUP)
    await fleet.until(lambda: fleet.stage(3, GROUP) is CopyStage.FILES, "files of the first come")
    await fleet.order(4, 0, group=OTHER)
    source = fleet.host(0)
    await fleet.until(lambda: source.problems(), "the second is refused")
    assert "copies that are asked of this server have to wait" in source.problems()[0]
    assert fleet.stage(4, OTHER) is CopyStage.STARTING
    held = source.copies.sessions.quota
    assert 3000 < held.used_bytes <= ROOM
    await fleet.copied(3, group=GROUP)
    assert [o.session for o in offers] == [offers[0].session], "one session was admitted"
    await fleet.as_(0, sessions.hold(offers[0].session, end=True))
    await fleet.copied(4, group=OTHER)
    await fleet.pass_ms(REFUSED_TTL_US // 1000)
    assert source.problems() == []
