"""Commands about members that fail, are refused, or run beside the masters' repair."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from nyala.common.errors import InvalidArgument, NotFound, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.operate.member_rpcs import CopyFailed
from nyala.operate.member_steps import MemberKind, MemberStep
from nyala.operate.membership import Membership
from nyala.operate.survivors import ServerEndpoint
from nyala.operate.unsafe_config import execute, plan
from nyala.raft.status import Role
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.cli.support.member_commands import with_scenario
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import refused

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")


def test_invalid_member_change_is_refused_without_changes():
    async def work(scenario):
        new, (first, second, _) = scenario.empty_servers()[0], scenario.holders()
        at = scenario.status().config
        a, b, c = scenario.uuid(first), scenario.uuid(second), scenario.uuid(new)
        unknown = Membership(scenario.core, "f" * 32)
        assert isinstance(await refused(scenario.on(unknown.remove, a)), NotFound)
        for work_, words in [
            (scenario.do("add", "nobody:7050"), "no tablet server 'nobody:7050'"),
            (scenario.do("move", a, b), "are voters both"),
            (scenario.do("move", a, a), "to another server"),
            (scenario.do("move", c, c), "to another server"),
            (scenario.do("change_type", c, MemberKind.VOTER), "is no member"),
            (scenario.do("change_type", a, MemberKind.WITNESS), "cannot be a witness"),
            (scenario.do("step_down", c), "no voter"),
        ]:
            err = await refused(work_)
            assert isinstance(err, InvalidArgument | NotFound)
            assert words in err.message
        new.kill()
        assert isinstance(await refused(scenario.do("add", c)), Unavailable)
        assert isinstance(await refused(scenario.do("move", a, c)), Unavailable)
        assert scenario.status().config == at
        new.restart()
        await scenario.cluster.loop.delay(3_000_000)

    with_scenario(work)


def test_move_to_a_server_that_is_lost_meanwhile_ends_long_before_its_deadline():
    async def work(scenario):
        new, old = scenario.empty_servers()[0], scenario.holders()[2]
        loop, uuids = scenario.cluster.loop, (scenario.uuid(old), scenario.uuid(new))
        began_s = loop.time()
        given = {"timeout_ms": 600_000, "at": 2, "after": new.kill}
        err = await refused(scenario.do("move", *uuids, **given))
        assert isinstance(err, Unavailable)
        assert "has not answered for 30 s" in err.message
        assert loop.time() - began_s < 60
        new.restart()
        await loop.delay(3_000_000)
        await scenario.do("move", *uuids)
        assert scenario.uuid(old) not in scenario.kinds()

    with_scenario(work)


def test_voter_with_lost_replica_is_not_copied_directly():
    async def work(scenario):
        lost = scenario.holders()[1]
        order = pb.DeleteTabletRequest(
            destination_uuid=scenario.uuid(lost),
            tablet_id=scenario.tablet,
            cluster_id=scenario.cluster_id,
        )
        await scenario.ask(lost, methods.DELETE_TABLET, order)
        err = await refused(scenario.do("add", scenario.uuid(lost)))
        assert isinstance(err, InvalidArgument)
        assert "remove_replica first, then add_replica" in err.message
        await scenario.do("remove", scenario.uuid(lost))
        err = await refused(scenario.do("add", scenario.uuid(lost), MemberKind.WITNESS))
        assert "cannot be a witness" in err.message
        await scenario.do("add", scenario.uuid(lost))
        assert scenario.kinds()[lost.name] == "voter"

    with_scenario(work)


def test_failed_command_reports_step_and_reason():
    async def work(scenario):
        live, dead = scenario.holders()[1:]
        dead.kill()
        await scenario.cluster.loop.delay(3_000_000)
        err = await refused(scenario.do("remove", scenario.uuid(live), timeout_ms=3_000))
        assert isinstance(err, TimedOut)
        for part in ("no progress for 3 s", "remove ", "respond, and 2 are needed", "again"):
            assert part in err.message
        dead.restart()
        await scenario.cluster.loop.delay(3_000_000)

    with_scenario(work)


@pytest.mark.row("S1.8")
def test_repeatedly_failing_copy_ends_command_with_reason():
    async def work(scenario):
        new, old = scenario.empty_servers()[0], scenario.holders()[1]
        faults = new.disk.faults
        faults.capacity_bytes = new.disk.used_bytes() + 1000
        membership, _ = scenario.command()
        for _ in range(2):
            err = await refused(
                scenario.on(membership.move, scenario.uuid(old), scenario.uuid(new))
            )
            assert isinstance(err, CopyFailed)
            assert "the copy" in err.message
            assert "are free" in err.message
        faults.capacity_bytes = None
        await scenario.on(membership.move, scenario.uuid(old), scenario.uuid(new))
        assert new.name in scenario.kinds(), "an earlier failure does not prevent another attempt"

    with_scenario(work)


def test_replica_can_be_moved_back_and_forth_repeatedly():
    async def work(scenario):
        membership, _ = scenario.command()
        for _ in range(8):
            old = scenario.holders()[1]
            new = next(p for p in scenario.cluster.tservers if p.name not in scenario.kinds())
            await scenario.on(membership.move, scenario.uuid(old), scenario.uuid(new))
            assert new.name in scenario.kinds()

    with_scenario(work)


@pytest.mark.parametrize("seed_moves", [1, 2, 3])
def test_concurrent_move_and_repair_do_not_conflict(seed_moves):
    async def work(scenario):
        for _ in range(seed_moves):
            old = scenario.holders()[seed_moves - 1]
            new = next(p for p in scenario.cluster.tservers if p.name not in scenario.kinds())
            await scenario.do("move", scenario.uuid(old), scenario.uuid(new))
            assert sorted(scenario.kinds()) == sorted(
                p.name for p in scenario.cluster.tservers if p is not old
            )
            assert set(scenario.kinds().values()) == {"voter"}

    with_scenario(work, workers=1, repair="on")


@pytest.mark.row("S1.42")
def test_unrecoverable_replica_is_deleted_before_it_is_added_again():
    async def work(scenario):
        leader, second, last = scenario.holders()
        leader.kill()
        second.kill()
        place = ServerEndpoint("", last.address)
        todo = await scenario.on(
            plan, scenario.core.env, scenario.tablet, place, [scenario.uuid(last)]
        )
        await scenario.on(execute, scenario.core.env, todo)
        for returned in (second, leader):
            await returned.restart()
            await scenario.cluster.until(
                lambda p=returned: scenario.state(p) == "CONFIGURING", "the replica is open again"
            )
            done = await scenario.do("add", scenario.uuid(returned))
            assert [step.split()[0] for step in done[:3]] == ["delete", "add", "copy"]
            assert scenario.kinds()[returned.name] == "voter"
        assert scenario.status().committed_config.lost == ()

    with_scenario(work)


@pytest.mark.row("S1.27")
def test_leader_transfer_command_changes_leader():
    async def work(scenario):
        first, second, third = scenario.holders()
        for named in (third, second, first):
            assert len(await scenario.do("step_down", named.address)) == 1
            assert scenario.leader is named
        assert await scenario.do("step_down", scenario.uuid(first)) == []
        await scenario.do("step_down")
        assert scenario.leader is not first
        assert scenario.status().role is Role.LEADER

    with_scenario(work, workers=1)


@pytest.mark.parametrize("again", [False, True])
def test_command_without_progress_names_the_answer_to_its_present_step_only(again):
    group = SimpleNamespace(status=None, config=None, leader=None, changing=False, replicas={})
    refused_ = AsyncMock(side_effect=Unavailable("its disk is full"))
    copying, waiting = MemberStep("copy the replica", refused_), MemberStep("wait for a leader")

    def decide(_group):
        return copying if again or refused_.await_count < 3 else waiting

    async def main(loop):
        unused: Any = None
        env = Env(SimClock(loop), seeded(1), unused, SimTasks(loop, seeded(1)), unused)
        core: Any = SimpleNamespace(env=env)
        directory: Any = object()
        work = Membership(core, "t", timeout_ms=2_000, directory=directory)
        view = AsyncMock(return_value=group)
        with (
            patch("nyala.operate.membership.view", view),
            pytest.raises(TimedOut) as raised,
        ):
            await work.run_steps(decide)
        return raised.value.message

    message = run(main)
    assert ("its disk is full" in message) is again
    assert ("wait for a leader" in message) is not again
