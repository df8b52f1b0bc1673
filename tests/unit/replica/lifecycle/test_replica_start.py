"""Start of a group, new or after a reboot: the configuration that counts, the leader, the first write."""

from dataclasses import replace

import pytest

from nyala.common.errors import AlreadyPresent, Unavailable
from nyala.common.ids import NO_OP
from nyala.raft.messages import AppendReply, PeerBatch
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.status import Role
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import GROUP, record_batches, scenario, uuid_of


@pytest.mark.row("S4.31")
@scenario()
async def test_followers_are_passive_while_leader_lives(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    followers = [n for n in range(3) if n != leader]
    batches: list[PeerBatch] = []
    for number in followers:
        record_batches(fleet.processes[number], batches)
    for _ in range(20):
        await fleet.write(b"k 1")
        await fleet.pass_ms(200)
    messages = [m for batch in batches for _, m in batch.messages]
    assert messages
    assert all(isinstance(m, AppendReply) for m in messages)
    fleet.processes[leader].kill()
    await fleet.leader(among=followers)
    assert not all(isinstance(m, AppendReply) for b in batches for _, m in b.messages), (
        "the followers campaign"
    )


@scenario(servers=1)
async def test_host_that_stops_says_so_until_its_files_are_closed(fleet):
    host = fleet.host(0)
    assert host.unavailable_reason == ""
    closed = fleet.spawn(0, host.close())
    await fleet.until(lambda: host.unavailable_reason or closed, "it is being closed")
    assert host.unavailable_reason == "it is stopping"
    await fleet.until(lambda: closed, "its files are closed")


@pytest.mark.row("S4.35", "S4.36")
@scenario(servers=4)
async def test_configuration_in_log_overrides_given_configuration(fleet):
    leader = await fleet.leader()
    assert fleet.replica(leader).status().config.id == NO_OP, (
        "a new replica has the given configuration"
    )
    removed = next(m for m in fleet.config.members if int(m.uuid, 16) != leader)
    work = fleet.replica(leader).change_config([Change(ChangeKind.REMOVE, removed)], NO_OP, 5000)
    config = await fleet.as_(leader, work)
    await fleet.until(
        lambda: fleet.replica(leader).status().committed_config == config, "committed"
    )
    for process in fleet.processes:
        process.kill(power_cut=True)
    await fleet.restart(leader)
    status = fleet.replica(leader).status()
    assert status.config == config
    assert status.config.members[0].peer_address.endswith(":9"), "members have the saved addresses"
    me = fleet.config.get(uuid_of(leader))
    other = replace(fleet.config, members=(me,))
    with pytest.raises(AlreadyPresent):
        await fleet.create(leader, GROUP, other)
    assert fleet.replica(leader).status().config == config


@pytest.mark.row("S4.37", "S4.39")
@scenario()
async def test_designated_first_leader_wins_initial_election(fleet):
    """The first leader replicates nothing in time: the others elect another one."""
    first = await fleet.leader()
    before = fleet.replica(first).status()
    others = [n for n in range(3) if n != first]
    for process in fleet.processes:
        process.kill()
    for number in range(3):
        await fleet.restart(number)
    assert all(fleet.replica(n).status().leader is None for n in range(3)), (
        "no member has a known leader"
    )
    fleet.network.partition([f"s{first}"], [f"s{n}" for n in others])
    second = await fleet.leader(among=others)
    status = fleet.replica(second).status()
    assert status.term > before.term
    assert status.commit > before.commit, "the leader has committed an entry of its term"
    fleet.network.heal()
    await fleet.until(lambda: fleet.replica(first).status().role is Role.FOLLOWER, "follows")
    assert (await fleet.write(b"k 1")).result == b"1"


@pytest.mark.row("S4.38")
@pytest.mark.parametrize("rebooting", [False, True])
def test_write_waits_for_leader_commit_in_its_term(rebooting):
    @scenario(start=False)
    async def steps(fleet):
        for number in range(3):
            await fleet.boot(number)
        if rebooting:
            for number in range(3):
                await fleet.create(number, GROUP)
            await fleet.write(b"k 0")
            for process in fleet.processes:
                process.kill()
            for number in range(3):
                await fleet.restart(number)
        else:
            for number in range(3):
                await fleet.create(number, GROUP)
        for process in fleet.processes:
            process.delays.disk_us = 30_000  # so that it takes a while to commit anything
        await fleet.until(lambda: any(fleet.replica(n).is_leader for n in range(3)), "elected")
        leader = next(n for n in range(3) if fleet.replica(n).is_leader)
        others = [f"s{n}" for n in range(3) if n != leader]
        fleet.network.cut(
            others, [f"s{leader}"]
        )  # its messages are delivered, and it receives none
        assert fleet.replica(leader).state is State.CONFIGURING
        answer = fleet.spawn(leader, fleet.call(leader, b"k 1", timeout_ms=100))
        await fleet.pass_ms(200)
        assert isinstance(answer[0], Unavailable)
        assert fleet.machine(leader).runs == 0
        fleet.network.heal()
        assert (await fleet.write(b"k 1")).result == b"1"
        running = fleet.replica(await fleet.leader()).status()
        assert running.state is State.RUNNING

    steps()
