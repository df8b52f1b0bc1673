"""Commands about members that cannot go on, are refused, or meet the masters' own repair."""

import pytest

from nyala.common.errors import InvalidArgument, NotFound, TimedOut, Unavailable
from nyala.operate.member_rpcs import CopyFailed
from nyala.operate.member_steps import MemberKind
from nyala.operate.membership import Membership
from nyala.operate.survivors import ServerEndpoint
from nyala.operate.unsafe_config import execute, plan
from nyala.raft.status import Role
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.cli.support.member_story import with_story
from tests.unit.tserver.support.members_story import refused


def test_invalid_member_change_is_refused_without_changes():
    async def work(story):
        new, (first, second, _) = story.without()[0], story.having()
        at = story.status().config
        a, b, c = story.uuid(first), story.uuid(second), story.uuid(new)
        unknown = Membership(story.core, "f" * 32)
        assert isinstance(await refused(story.on(unknown.remove, a)), NotFound)
        for work_, words in [
            (story.do("add", "nobody:7050"), "no tablet server 'nobody:7050'"),
            (story.do("move", a, b), "are voters both"),
            (story.do("move", a, a), "to another server"),
            (story.do("move", c, c), "to another server"),
            (story.do("change_type", c, MemberKind.VOTER), "is no member"),
            (story.do("change_type", a, MemberKind.WITNESS), "cannot be a witness"),
            (story.do("step_down", c), "no voter"),
        ]:
            err = await refused(work_)
            assert isinstance(err, InvalidArgument | NotFound)
            assert words in err.message
        new.kill()
        assert isinstance(await refused(story.do("add", c)), Unavailable)
        assert isinstance(await refused(story.do("move", a, c)), Unavailable)
        assert story.status().config == at
        new.restart()
        await story.cluster.loop.delay(3_000_000)

    with_story(work)


def test_voter_with_lost_replica_is_not_copied_directly():
    async def work(story):
        lost = story.having()[1]
        order = pb.DeleteTabletRequest(
            destination_uuid=story.uuid(lost), tablet_id=story.tablet, cluster_id=story.cluster_id
        )
        await story.ask(lost, methods.DELETE_TABLET, order)
        err = await refused(story.do("add", story.uuid(lost)))
        assert isinstance(err, InvalidArgument)
        assert "remove_replica first, then add_replica" in err.message
        await story.do("remove", story.uuid(lost))
        err = await refused(story.do("add", story.uuid(lost), MemberKind.WITNESS))
        assert "cannot be a witness" in err.message
        await story.do("add", story.uuid(lost))
        assert story.kinds()[lost.name] == "voter"

    with_story(work)


def test_failed_command_reports_step_and_reason():
    async def work(story):
        live, dead = story.having()[1:]
        dead.kill()
        await story.cluster.loop.delay(3_000_000)
        err = await refused(story.do("remove", story.uuid(live), timeout_ms=3_000))
        assert isinstance(err, TimedOut)
        for part in ("no progress for 3 s", "remove ", "respond, and 2 are needed", "again"):
            assert part in err.message
        dead.restart()
        await story.cluster.loop.delay(3_000_000)

    with_story(work)


@pytest.mark.row("S1.8")
def test_repeatedly_failing_copy_ends_command_with_reason():
    async def work(story):
        new, old = story.without()[0], story.having()[1]
        faults = new.disk.faults
        faults.capacity_bytes = new.disk.used_bytes() + 1000
        membership, _ = story.command()
        for _ in range(2):
            err = await refused(story.on(membership.move, story.uuid(old), story.uuid(new)))
            assert isinstance(err, CopyFailed)
            assert "the copy" in err.message
            assert "are free" in err.message
        faults.capacity_bytes = None
        await story.on(membership.move, story.uuid(old), story.uuid(new))
        assert new.name in story.kinds(), "what failed before is no reason not to try again"

    with_story(work)


def test_replica_can_be_moved_back_and_forth_repeatedly():
    async def work(story):
        membership, _ = story.command()
        for _ in range(8):
            old = story.having()[1]
            new = next(p for p in story.cluster.tservers if p.name not in story.kinds())
            await story.on(membership.move, story.uuid(old), story.uuid(new))
            assert new.name in story.kinds()

    with_story(work)


@pytest.mark.parametrize("seed_moves", [1, 2, 3])
def test_concurrent_move_and_repair_do_not_conflict(seed_moves):
    async def work(story):
        for _ in range(seed_moves):
            old = story.having()[seed_moves - 1]
            new = next(p for p in story.cluster.tservers if p.name not in story.kinds())
            await story.do("move", story.uuid(old), story.uuid(new))
            assert sorted(story.kinds()) == sorted(
                p.name for p in story.cluster.tservers if p is not old
            )
            assert set(story.kinds().values()) == {"voter"}

    with_story(work, workers=1, repair="on")


@pytest.mark.row("S1.42")
def test_unrecoverable_replica_is_deleted_before_it_is_added_again():
    async def work(story):
        leader, second, last = story.having()
        leader.kill()
        second.kill()
        place = ServerEndpoint("", last.address)
        todo = await story.on(plan, story.core.env, story.tablet, place, [story.uuid(last)])
        await story.on(execute, story.core.env, todo)
        for returned in (second, leader):
            await returned.restart()
            await story.cluster.until(
                lambda p=returned: story.state(p) == "CONFIGURING", "it is back"
            )
            done = await story.do("add", story.uuid(returned))
            assert [step.split()[0] for step in done[:3]] == ["delete", "add", "copy"]
            assert story.kinds()[returned.name] == "voter"
        assert story.status().committed_config.lost == ()

    with_story(work)


@pytest.mark.row("S1.27")
def test_leader_transfer_command_changes_leader():
    async def work(story):
        first, second, third = story.having()
        for named in (third, second, first):
            assert len(await story.do("step_down", named.address)) == 1
            assert story.leader is named
        assert await story.do("step_down", story.uuid(first)) == []
        await story.do("step_down")
        assert story.leader is not first
        assert story.status().role is Role.LEADER

    with_story(work, workers=1)
