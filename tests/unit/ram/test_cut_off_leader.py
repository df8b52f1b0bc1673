"""A leader that does not reach most servers, which are alive by the journal, crashes none of them."""

import pytest

from nyala.ram.ids import ServerId
from nyala.ram.server_list import ServerStatus
from tests.unit.ram.support.ensemble import SimEnsemble, ensemble
from tests.unit.ram.support.requests import create, started


def leading(e: SimEnsemble) -> str:
    """Return the name of the coordinator that leads."""
    return next(n for n, c in e.coordinators.items() if c is e.leader())


def ids(e: SimEnsemble) -> dict[str, ServerId]:
    """Return the ids of the servers, which change when one crashes and enlists anew."""
    return {name: s.member.id for name, s in e.servers.items()}


@pytest.mark.parametrize("reached", [0, 1], ids=["none", "one of four"])
def test_leader_that_reaches_few_servers_resigns_and_crashes_none(reached):
    @ensemble
    async def scenario(e):
        await started(e, servers=4)
        client = await e.client()
        await client.call(*create("t", 8), 20_000)
        await e.until(e.settled)
        before, first = ids(e), leading(e)
        e.apart |= {frozenset((first, s)) for s in list(e.servers)[reached:]}
        await e.until(lambda: e.leader() is not None and leading(e) != first, 30)
        await e.until(e.settled)
        await e.wait_s(30)
        assert ids(e) == before, "no server has crashed"
        assert leading(e) != first
        e.apart.clear()
        await e.until(e.settled)

    scenario()


@ensemble
async def test_lone_coordinator_that_is_cut_off_from_its_servers_crashes_none(e):
    await started(e, coordinators=1)
    before = ids(e)
    e.apart |= {frozenset(("c0", s)) for s in e.servers}
    await e.wait_s(60)
    e.apart.clear()
    await e.until(e.settled)
    assert ids(e) == before


@ensemble
async def test_most_servers_crash_if_the_journal_does_not_hear_of_them_either(e):
    await started(e, coordinators=1, servers=4)
    client = await e.client()
    await client.call(*create("t", 8), 20_000)
    await e.until(e.settled)
    for name in "s1", "s2", "s3":
        await e.kill(name)
    began = e.loop.now_us()
    await e.until(e.settled, 20)
    assert 3_000_000 < e.loop.now_us() - began < 10_000_000, "after some doubt"
    assert len(e.servers["s0"].member.owned) == 8


@ensemble
async def test_few_servers_that_the_leader_does_not_reach_crash_at_once(e):
    await started(e, coordinators=1, servers=4)
    servers, lost = e.leader().term.state.servers, e.servers["s1"].member.id
    e.apart.add(frozenset(("c0", "s1")))
    began = e.loop.now_us()
    await e.until(lambda: lost not in {s.id for s in servers.with_status(ServerStatus.UP)})
    assert e.loop.now_us() - began < 5_000_000
