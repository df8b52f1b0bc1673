"""Commands about members, through real servers in virtual time: whole, cut off at each order, witnesses."""

from dataclasses import replace
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.operate.member_steps import MemberKind
from tests.unit.cli.support.member_story import Calls, Killed, die, with_story
from tests.unit.tserver.support.members_story import refused


@pytest.mark.row("S1.28", "S1.22", "A10")
def test_move_under_load_leaves_new_voter_and_tombstone():
    async def work(story):
        new, old = story.without()[0], story.leader
        done = await story.do("move", story.uuid(old), new.address)
        assert [words.split()[0] for words in done] == ["add", "copy", "hand", "remove", "delete"]
        assert story.kinds() == {p.name: "voter" for p in story.cluster.tservers if p is not old}
        assert story.state(old) == "TOMBSTONED"
        assert not any(m.replace or m.promote for m in story.status().committed_config.members)
        assert await story.do("move", story.uuid(old), new.address) == [], "all is done already"

    with_story(work, workers=3)


@pytest.mark.row("S1.28")
@pytest.mark.parametrize("answered", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("at", range(1, 6))
def test_interrupted_move_continues_when_repeated(at, answered):
    async def work(story):
        new, old = story.without()[0], story.leader
        moved = story.uuid(old), story.uuid(new)
        membership, wire = story.command(at=at, **{"after" if answered else "before": die})
        with pytest.raises(Killed):
            await story.on(membership.move, *moved)
        assert (wire.answered if answered else wire.given) == at
        await story.do("move", *moved)
        assert sorted(story.kinds()) == sorted(
            p.name for p in story.cluster.tservers if p is not old
        )
        assert set(story.kinds().values()) == {"voter"}
        assert story.state(old) == "TOMBSTONED"

    with_story(work)


def test_move_reports_copy_progress():
    async def work(story):
        await story.cluster.loop.delay(1_000_000)  # some rows
        membership, _ = story.command()
        said: list[str] = []
        membership.notify = said.append
        await story.on(membership.move, story.uuid(story.leader), story.uuid(story.without()[0]))
        tenths = [w.split(": ")[1] for w in said if w.startswith("wait for the copy from ")]
        assert len(tenths) > 2, said
        assert all(" % of " in t for t in tenths), said
        assert len(set(tenths)) == len(tenths), "each is said once"

    with_story(work, workers=1, copy_rate_bytes=3000)


@pytest.mark.parametrize("repair", ["off", "on"])
def test_move_is_cancelled_by_making_source_a_voter_again(repair):
    """Masters then take the newcomer out by themselves; without them a person does."""

    async def work(story):
        new, old = story.without()[0], story.having()[1]
        before = story.kinds()
        membership, _ = story.command(at=2, after=die)
        with pytest.raises(Killed):
            await story.on(membership.move, story.uuid(old), story.uuid(new))
        done = await story.do("change_type", story.uuid(old), MemberKind.VOTER)
        assert [words.split()[0] for words in done] == ["let"]
        assert not any(m.replace for m in story.status().committed_config.members)
        if repair == "off":
            await story.do("remove", story.uuid(new))
        for _ in range(600):
            if story.kinds() == before and story.state(new) in ("", "TOMBSTONED"):
                break
            await story.cluster.loop.delay(100_000)
        assert story.kinds() == before
        assert await story.do("change_type", story.uuid(old), MemberKind.VOTER) == []

    with_story(work, repair=repair, copy_rate_bytes=500)


@pytest.mark.parametrize("who", ["source", "target", "third"])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_server_crash_and_return_during_move_does_not_end_it(at, who):
    async def work(story):
        new, (old, _, third) = story.without()[0], story.having()
        victim = {"source": old, "target": new, "third": third}[who]

        def strike():
            victim.kill()
            story.cluster.network.after(4_000_000, victim.restart)

        await story.do("move", story.uuid(old), story.uuid(new), at=at, before=strike)
        await story.cluster.loop.delay(6_000_000)
        await story.do("remove", story.uuid(old))
        assert story.state(old) == "TOMBSTONED"
        assert set(story.kinds().values()) == {"voter"}

    with_story(work)


@pytest.mark.row("S1.2")
def test_group_shrinks_to_one_replica_and_grows_to_three():
    async def work(story):
        first, second, third = story.having()
        await story.do("remove", story.uuid(second))
        await story.do("remove", story.uuid(first))
        assert story.kinds() == {third.name: "voter"}
        err = await refused(story.do("remove", story.uuid(third), timeout_ms=2_000))
        assert isinstance(err, InvalidArgument)
        for server in (first, second):
            await story.do("add", story.uuid(server))
        assert story.kinds() == {p.name: "voter" for p in (first, second, third)}
        assert await story.do("add", story.uuid(first)) == []

    with_story(work, workers=2)


@pytest.mark.row("S1.51")
def test_witness_replaces_dead_member_and_receives_data_later():
    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        dead.kill()
        await story.do("add", story.uuid(new), MemberKind.WITNESS)
        await story.do("change_type", story.uuid(dead), MemberKind.NON_VOTER)
        assert story.kinds() == {
            leader.name: "voter", other.name: "voter", new.name: "witness voter", dead.name: "non-voter",
        }  # fmt: skip
        await story.do("change_type", story.uuid(new), MemberKind.VOTER)
        assert story.kinds()[new.name] == "voter"
        await story.do("remove", story.uuid(dead))
        dead.restart()
        await story.cluster.loop.delay(3_000_000)
        assert story.state(dead) in ("RUNNING", "CONFIGURING"), "nobody has told it"
        await story.do("remove", story.uuid(dead))
        assert story.state(dead) == "TOMBSTONED"
        assert story.kinds() == {p.name: "voter" for p in (leader, other, new)}

    with_story(work, workers=2)


def test_briefly_silent_member_keeps_its_data():
    async def work(story):
        old = story.having()[1]
        membership, wire = story.command()
        misses: list[object] = []

        async def call(address, method, request, *, timeout_ms):
            removed = story.uuid(old) not in {
                m.uuid for m in story.status().committed_config.members
            }
            if removed and address == old.address and len(misses) < 3:
                misses.append(method)
                raise Unavailable("not at home")
            return await wire.call(address, method, request, timeout_ms=timeout_ms)

        flaky: Any = Calls(call, wire)
        membership.core.env = replace(membership.core.env, rpc=flaky)
        await story.on(membership.remove, story.uuid(old))
        assert len(misses) == 3
        assert story.state(old) == "TOMBSTONED"

    with_story(work)


@pytest.mark.row("S1.54")
def test_witness_restores_majority_long_before_copy_ends():
    """In virtual time, with copies that are slow by their throttle; `./run bench copy` measures it."""
    took = {}

    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        await story.cluster.loop.delay(5_000_000)  # some rows
        dead.kill()
        began = story.cluster.loop.now_us()
        await story.do("add", story.uuid(new), MemberKind.WITNESS)
        await story.do("remove", story.uuid(dead))
        took["witness"] = story.cluster.loop.now_us() - began
        other.kill()
        await story.cluster.loop.delay(3_000_000)
        assert story.leader is leader, "one more may die, and the others are a majority"
        await other.restart()
        began = story.cluster.loop.now_us()
        await story.do("change_type", story.uuid(new), MemberKind.VOTER)
        took["copy"] = story.cluster.loop.now_us() - began
        await dead.restart()
        await story.cluster.loop.delay(3_000_000)

    with_story(work, workers=1, copy_rate_bytes=500)
    assert took["witness"] * 3 < took["copy"], took


@pytest.mark.row("S1.50")
def test_returning_member_becomes_voter_again_and_witness_is_removed():
    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        dead.kill()
        await story.do("add", story.uuid(new), MemberKind.WITNESS)
        await story.do("change_type", story.uuid(dead), MemberKind.NON_VOTER)
        filling, _ = story.command(at=2, after=die)  # 1: its log is kept, 2: the copy begins
        with pytest.raises(Killed):
            await story.on(filling.change_type, story.uuid(new), MemberKind.VOTER)
        dead.restart()
        await story.do("change_type", story.uuid(dead), MemberKind.VOTER)
        await story.do("remove", story.uuid(new))
        assert story.state(new) == "TOMBSTONED"
        assert story.kinds() == {p.name: "voter" for p in (leader, other, dead)}

    with_story(work)
