"""A voter that answers and makes no progress, in a simulated cluster: reported as FAILED, and replaced."""

from typing import Any

from nyala.operate.ksck import check
from nyala.raft.messages import AppendEntries
from tests.sim.systems.cluster import REPAIRING
from tests.sim.systems.replicas import hosts_of
from tests.unit.master.support.ddl_cluster import with_cluster


def ignore_entries(process, tablet):
    """Let a replica answer all messages except entries, as with a disk that hangs."""
    member: Any = hosts_of(process)[0].get(tablet).member
    step = member.step

    def drop_entries(message, hlc):
        if not (isinstance(message, AppendEntries) and message.entries):
            step(message, hlc)

    member.step = drop_entries


def test_voter_that_accepts_no_entries_is_replaced():
    async def work(ddl):
        cluster = ddl.cluster
        table = await ddl.create()
        await ddl.put(table, 1, 2)
        tablet = table.tablets[0].id
        leader = cluster.leader_of(tablet)
        holders = [p for p, g, _ in cluster.replicas() if g == tablet]
        victim = next(p for p in holders if p is not leader)
        ignore_entries(victim, tablet)
        await ddl.put(table, 3)
        await cluster.loop.delay(REPAIRING.member_failed_after_ms * 500)
        (peer,) = [p for p in status(leader, tablet).peers if p.ticks_stuck]
        assert peer.uuid == victim.server.uuid
        assert peer.ticks_silent * REPAIRING.raft_tick_ms < REPAIRING.election_timeout_ms
        assert victim.server.uuid in members(leader, tablet), "not before the limit"

        def replaced():
            now = cluster.leader_of(tablet)
            return now is not None and victim.server.uuid not in members(now, tablet)

        await cluster.until(replaced, "another server replaces the stuck voter", 60)
        await cluster.until(lambda: whole(ddl, tablet), "there are three voters", 60)
        await ddl.put(table, 4)
        assert await ddl.keys(table) == [1, 2, 3, 4]
        assert (await ddl.ask(check.check, ddl.core)).problems == []

    with_cluster(work, tservers=4, options=REPAIRING)


def status(process, tablet):
    return hosts_of(process)[0].get(tablet).status()


def members(process, tablet):
    return [m.uuid for m in status(process, tablet).committed_config.members]


def whole(ddl, tablet):
    catalog = ddl.leading()
    known = None if catalog is None else catalog.tablet(tablet)
    held = [p for p, g, _ in ddl.cluster.replicas() if g == tablet]
    voters = [] if known is None else [m for m in known.consensus.members if m.voter]
    return len(voters) == len(held) == 3
