"""Replication groups are made anew when a member is lost; wills spread tablets, and outlive leaders."""

from collections import Counter

import pytest

from nyala.ram.server_list import BACKUP, ServerStatus
from nyala.ram.will import MOST_TABLETS, TabletLoad
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import SimEnsemble, ensemble
from tests.unit.ram.support.requests import create, dump, started


def groups(e: SimEnsemble) -> dict[str, int]:
    """Return the replication group of each backup that is up, by address."""
    leader = e.leader()
    assert leader is not None
    up = leader.term.state.servers.with_status(ServerStatus.UP, BACKUP)
    return {s.up.address.partition(":")[0]: s.group_number for s in up}


def in_threes(e: SimEnsemble) -> bool:
    """Return whether all groups are complete, and fewer backups are left than a group needs."""
    if not e.settled():
        return False
    sizes = Counter(groups(e).values())
    left = sizes.pop(0, 0)
    return left < 3 and all(size == 3 for size in sizes.values())


@pytest.mark.row("S3.40")
@ensemble
async def test_group_that_lost_a_member_is_dissolved_and_its_backups_form_another_one(e):
    await started(e, servers=3)
    await e.until(lambda: in_threes(e))
    first = {*groups(e).values()}
    assert len(first) == 1
    await e.kill("s1")
    await e.until(lambda: in_threes(e))
    assert groups(e) == {"s0": 0, "s2": 0}, "two are no group"
    listed = (await e.status("s0")).servers
    assert [s.group for s in listed] == [0, 0], "as all servers know"
    await e.server("s3")
    await e.until(lambda: in_threes(e) and any(groups(e).values()))
    (again,) = {*groups(e).values()}
    assert again not in {*first, 0}
    client = await e.client()
    before = await dump(client)
    leader = next(n for n, c in e.coordinators.items() if c is e.leader())
    await e.kill(leader)
    await e.until(lambda: in_threes(e))
    assert await dump(client) == before


@ensemble
async def test_backups_that_move_twice_before_anybody_confirms_leave_no_gap_in_the_list(e):
    """A new leader, whose list begins with what all have, has each change of a group in it."""
    await started(e, servers=4)
    await e.until(lambda: in_threes(e))
    leader = next(n for n, c in e.coordinators.items() if c is e.leader())
    e.cut.add("s3")  # nothing is confirmed from now on, until it crashes
    grouped = [n for n, g in groups(e).items() if g]
    await e.kill(grouped[0] if grouped[0] != "s3" else grouped[1])
    await e.wait_s(1.2)
    await e.kill(leader)
    await e.server("s8")
    await e.server("s9")
    e.cut.clear()
    await e.until(lambda: in_threes(e))
    assert len({g for g in groups(e).values() if g}) == 1


@pytest.mark.row("S3.5")
@ensemble
async def test_tablets_without_loads_are_divided_among_several_servers(e):
    await started(e, servers=5)
    client = await e.client()
    await client.call(*create("t", 5 * 4 * MOST_TABLETS), 20_000)
    await e.until(e.settled)
    await e.kill("s1")
    await e.until(e.settled)
    owned = [len(s.member.owned) for s in e.servers.values()]
    assert owned == [4 * MOST_TABLETS + MOST_TABLETS] * 4


@pytest.mark.row("S3.5")
@ensemble
async def test_will_follows_loads_that_the_leader_before_was_told(e):
    e.limit = TabletLoad(100, 1000)
    await started(e, servers=5)
    client = await e.client()
    await client.call(*create("t", 5), 20_000)
    await e.until(e.settled)
    e.loads["s1"].update({t: TabletLoad(350, 10) for t in e.servers["s1"].member.owned})
    await e.wait_s(2)
    leader = next(n for n, c in e.coordinators.items() if c is e.leader())
    await e.kill(leader)
    await e.kill("s1")
    await e.until(e.settled)
    assert [len(s.member.owned) for s in e.servers.values()] == [2, 2, 2, 2], "four pieces"


@pytest.mark.row("S3.5")
@ensemble
async def test_loads_are_noted_again_when_they_have_changed_by_a_fifth(e):
    await started(e, servers=1)
    client = await e.client()
    await client.call(*create("t", 1), 20_000)
    await e.until(e.settled)
    (tablet,) = e.servers["s0"].member.owned

    async def noted(size: int) -> list[int]:
        e.loads["s0"][tablet] = TabletLoad(size, 10)
        await e.wait_s(2)
        found = (await client.call(methods.RAM_WILLS, pb.WillsRequest(), 20_000)).wills
        return [p.bytes for p in found[0].parts]

    assert await noted(1000) == [1000]
    count = len(e.journal.group)
    assert await noted(1150) == [1000], "by less than a fifth"
    assert all(len(s.changes) == 1 for s in e.journal.group[count:]), "renewals only"
    assert await noted(1300) == [1300]
