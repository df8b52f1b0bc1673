"""Verbs on replicas of one running server, through real servers in virtual time."""

import msgspec
import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, Unavailable
from nyala.operate import remote_replicas
from nyala.operate.member_rpcs import CopyFailed
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, refused, started

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")

BY_HAND = msgspec.structs.replace(OPTIONS, repair="off")


class Scenario(Group):
    """A group, and commands about the replicas of its servers."""

    messages: tuple[str, ...] = ()

    def notify(self, words):
        self.messages = (*self.messages, words)

    async def copy(self, source, target, force=False):
        work = remote_replicas.copy_replica(
            self.core, self.tablet, source, target, force=force, notify=self.notify
        )
        return await self.on(lambda: work)

    async def delete(self, server, force=False):
        work = remote_replicas.delete_replica(
            self.core, server, self.tablet, force=force, notify=self.notify
        )
        return await self.on(lambda: work)

    async def listed(self, server):
        _, rows = await self.on(lambda: remote_replicas.replicas_of_server(self.core, server))
        return rows


def with_scenario(work):
    async def main(loop):
        await work(
            Scenario(*await started(SimCluster(loop, 6, tservers=4, options=BY_HAND, masters=1)))
        )

    run(main, max_time_s=600)


@pytest.mark.row("S1.6", "S1.8")
def test_copy_command_starts_copy_and_waits():
    async def work(scenario):
        new, (leader, _, _) = scenario.empty_servers()[0], scenario.holders()
        made = await scenario.copy(scenario.uuid(leader), new.address)
        assert made.stage == "WAITING"
        assert made.source_uuid == scenario.uuid(leader)
        assert scenario.messages[0].startswith(f"copy the replica of {scenario.tablet} on ")
        (row,) = await scenario.listed(new.address)
        assert (row.state, row.role, row.table) == ("CONFIGURING", "NON_PARTICIPANT", "t")
        assert row.copy.startswith("WAITING")
        again = await scenario.copy(scenario.uuid(leader), new.address)
        assert again.stage == "WAITING", "a repeated command reports the copy in progress"
        assert await scenario.delete(new.address)
        assert scenario.state(new) == "TOMBSTONED"
        assert not await scenario.delete(new.address)
        assert scenario.messages[-1].endswith("nothing to do")

    with_scenario(work)


def test_copy_from_follower_requires_force_and_reports_possible_loss():
    async def work(scenario):
        new, (leader, follower, _) = scenario.empty_servers()[0], scenario.holders()
        err = await refused(scenario.copy(follower.address, new.address))
        assert isinstance(err, CopyFailed)
        assert scenario.uuid(leader) in err.message
        assert "force it and lose what came after" in err.message
        assert scenario.state(new) == ""
        await scenario.copy(follower.address, new.address, force=True)
        assert "forced: it may lack writes that were acknowledged" in " ".join(scenario.messages)
        assert scenario.messages[-1].startswith("it may lack something: ")

    with_scenario(work)


def test_copy_over_running_replica_or_from_missing_one_is_refused():
    async def work(scenario):
        new, (leader, other, _) = scenario.empty_servers()[0], scenario.holders()
        assert isinstance(
            await refused(scenario.copy(leader.address, other.address)), AlreadyPresent
        )
        assert isinstance(
            await refused(scenario.copy(new.address, leader.address)), InvalidArgument
        )
        assert isinstance(await refused(scenario.copy("nobody:1", new.address)), NotFound)
        new.kill()
        assert isinstance(await refused(scenario.copy(leader.address, new.address)), Unavailable)

    with_scenario(work)


def test_replica_in_group_configuration_is_deleted_only_with_force():
    async def work(scenario):
        leader, other, third = scenario.holders()
        err = await refused(scenario.delete(scenario.uuid(other)))
        assert isinstance(err, InvalidArgument)
        assert "which would have one replica less" in err.message
        third.kill()
        leader.kill()
        await scenario.cluster.loop.delay(5_000_000)
        err = await refused(scenario.delete(scenario.uuid(other)))
        assert "writes that only this replica has would be lost" in err.message
        assert scenario.state(other) == "CONFIGURING"
        assert await scenario.delete(scenario.uuid(other), force=True)
        assert scenario.state(other) == "TOMBSTONED"

    with_scenario(work)


def test_stopped_replica_is_a_problem_and_tombstone_is_not():
    made = {
        state: remote_replicas.RemoteReplica(
            "t1", "t", state, "", 1, "1.1", 1, 0, "", "broken"
        ).problem
        for state in ("RUNNING", "TOMBSTONED", "FAILED", "BOOTSTRAPPING")
    }
    assert [s for s, problem in made.items() if problem] == ["FAILED", "BOOTSTRAPPING"]
    assert made["FAILED"] == "the replica of t1 is FAILED: broken"
