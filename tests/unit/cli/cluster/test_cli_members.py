"""Commands about members, through real servers in virtual time: complete, interrupted, with witnesses."""

from dataclasses import replace
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.operate.member_steps import MemberKind
from tests.selected import first
from tests.unit.cli.support.member_commands import Calls, Killed, die, with_scenario
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import refused

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")


@pytest.mark.row("S1.28", "S1.22", "A10")
def test_move_under_load_leaves_new_voter_and_tombstone():
    async def work(scenario):
        new, old = scenario.empty_servers()[0], scenario.leader
        done = await scenario.do("move", scenario.uuid(old), new.address)
        assert [words.split()[0] for words in done] == [
            "add",
            "copy",
            "transfer",
            "remove",
            "delete",
        ]
        assert scenario.kinds() == {
            p.name: "voter" for p in scenario.cluster.tservers if p is not old
        }
        assert scenario.state(old) == "TOMBSTONED"
        assert not any(m.replace or m.promote for m in scenario.status().committed_config.members)
        assert await scenario.do("move", scenario.uuid(old), new.address) == [], (
            "a repetition has no steps"
        )

    with_scenario(work, workers=3)


@pytest.mark.row("S1.28")
@pytest.mark.parametrize("answered", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("at", range(1, 6))
def test_interrupted_move_continues_when_repeated(at, answered):
    async def work(scenario):
        new, old = scenario.empty_servers()[0], scenario.leader
        moved = scenario.uuid(old), scenario.uuid(new)
        membership, wire = scenario.command(at=at, **{"after" if answered else "before": die})
        with pytest.raises(Killed):
            await scenario.on(membership.move, *moved)
        assert (wire.answered if answered else wire.given) == at
        await scenario.do("move", *moved)
        assert sorted(scenario.kinds()) == sorted(
            p.name for p in scenario.cluster.tservers if p is not old
        )
        assert set(scenario.kinds().values()) == {"voter"}
        assert scenario.state(old) == "TOMBSTONED"

    with_scenario(work)


def test_move_reports_copy_progress():
    async def work(scenario):
        await scenario.cluster.loop.delay(1_000_000)  # some rows
        membership, _ = scenario.command()
        messages: list[str] = []
        membership.notify = messages.append
        await scenario.on(
            membership.move,
            scenario.uuid(scenario.leader),
            scenario.uuid(scenario.empty_servers()[0]),
        )
        tenths = [w.split(": ")[1] for w in messages if w.startswith("wait for the copy from ")]
        assert len(tenths) > 2, messages
        assert all(" % of " in t for t in tenths), messages
        assert len(set(tenths)) == len(tenths), "each progress message is printed once"

    with_scenario(work, workers=1, copy_rate_bytes=3000)


@pytest.mark.parametrize("repair", ["off", "on"])
def test_move_is_cancelled_by_making_source_a_voter_again(repair):
    """The masters then remove the new member; without repair a command does."""

    async def work(scenario):
        new, old = scenario.empty_servers()[0], scenario.holders()[1]
        before = scenario.kinds()
        membership, _ = scenario.command(at=2, after=die)
        with pytest.raises(Killed):
            await scenario.on(membership.move, scenario.uuid(old), scenario.uuid(new))
        done = await scenario.do("change_type", scenario.uuid(old), MemberKind.VOTER)
        assert [words.split()[0] for words in done] == ["keep"]
        assert not any(m.replace for m in scenario.status().committed_config.members)
        if repair == "off":
            await scenario.do("remove", scenario.uuid(new))
        for _ in range(600):
            if scenario.kinds() == before and scenario.state(new) in ("", "TOMBSTONED"):
                break
            await scenario.cluster.loop.delay(100_000)
        assert scenario.kinds() == before
        assert await scenario.do("change_type", scenario.uuid(old), MemberKind.VOTER) == []

    with_scenario(work, repair=repair, copy_rate_bytes=500)


@pytest.mark.parametrize("who", ["source", "target", "third"])
@pytest.mark.parametrize("at", first([3, 2, 4]))
def test_server_crash_and_return_during_move_does_not_end_it(at, who):
    async def work(scenario):
        new, (old, _, third) = scenario.empty_servers()[0], scenario.holders()
        victim = {"source": old, "target": new, "third": third}[who]

        def strike():
            victim.kill()
            scenario.cluster.network.after(4_000_000, victim.restart)

        await scenario.do("move", scenario.uuid(old), scenario.uuid(new), at=at, before=strike)
        await scenario.cluster.loop.delay(6_000_000)
        await scenario.do("remove", scenario.uuid(old))
        assert scenario.state(old) == "TOMBSTONED"
        assert set(scenario.kinds().values()) == {"voter"}

    with_scenario(work)


@pytest.mark.row("S1.2")
def test_group_shrinks_to_one_replica_and_grows_to_three():
    async def work(scenario):
        first, second, third = scenario.holders()
        await scenario.do("remove", scenario.uuid(second))
        await scenario.do("remove", scenario.uuid(first))
        assert scenario.kinds() == {third.name: "voter"}
        err = await refused(scenario.do("remove", scenario.uuid(third), timeout_ms=2_000))
        assert isinstance(err, InvalidArgument)
        for server in (first, second):
            await scenario.do("add", scenario.uuid(server))
        assert scenario.kinds() == {p.name: "voter" for p in (first, second, third)}
        assert await scenario.do("add", scenario.uuid(first)) == []

    with_scenario(work, workers=2)


@pytest.mark.row("S1.51")
def test_witness_replaces_dead_member_and_receives_data_later():
    async def work(scenario):
        new, (leader, other, dead) = scenario.empty_servers()[0], scenario.holders()
        dead.kill()
        await scenario.do("add", scenario.uuid(new), MemberKind.WITNESS)
        await scenario.do("change_type", scenario.uuid(dead), MemberKind.NON_VOTER)
        assert scenario.kinds() == {
            leader.name: "voter", other.name: "voter", new.name: "witness voter", dead.name: "non-voter",
        }  # fmt: skip
        await scenario.do("change_type", scenario.uuid(new), MemberKind.VOTER)
        assert scenario.kinds()[new.name] == "voter"
        await scenario.do("remove", scenario.uuid(dead))
        dead.restart()
        await scenario.cluster.loop.delay(3_000_000)
        assert scenario.state(dead) in ("RUNNING", "CONFIGURING"), (
            "the dead member is not notified of its removal"
        )
        await scenario.do("remove", scenario.uuid(dead))
        assert scenario.state(dead) == "TOMBSTONED"
        assert scenario.kinds() == {p.name: "voter" for p in (leader, other, new)}

    with_scenario(work, workers=2)


def test_briefly_silent_member_keeps_its_data():
    async def work(scenario):
        old = scenario.holders()[1]
        membership, wire = scenario.command()
        misses: list[object] = []

        async def call(address, method, request, *, timeout_ms):
            removed = scenario.uuid(old) not in {
                m.uuid for m in scenario.status().committed_config.members
            }
            if removed and address == old.address and len(misses) < 3:
                misses.append(method)
                raise Unavailable("no server at the address")
            return await wire.call(address, method, request, timeout_ms=timeout_ms)

        flaky: Any = Calls(call, wire)
        membership.core.env = replace(membership.core.env, rpc=flaky)
        await scenario.on(membership.remove, scenario.uuid(old))
        assert len(misses) == 3
        assert scenario.state(old) == "TOMBSTONED"

    with_scenario(work)


@pytest.mark.full
@pytest.mark.row("S1.54")
def test_witness_restores_majority_long_before_copy_ends():
    """In virtual time, with copies that are slow by their throttle; `./run bench copy` measures it."""
    took = {}

    async def work(scenario):
        new, (leader, other, dead) = scenario.empty_servers()[0], scenario.holders()
        await scenario.cluster.loop.delay(3_000_000)  # some rows
        dead.kill()
        began = scenario.cluster.loop.now_us()
        await scenario.do("add", scenario.uuid(new), MemberKind.WITNESS)
        await scenario.do("remove", scenario.uuid(dead))
        took["witness"] = scenario.cluster.loop.now_us() - began
        other.kill()
        await scenario.cluster.loop.delay(3_000_000)
        assert scenario.leader is leader, "one more member may fail, and the others are a majority"
        await other.restart()
        began = scenario.cluster.loop.now_us()
        await scenario.do("change_type", scenario.uuid(new), MemberKind.VOTER)
        took["copy"] = scenario.cluster.loop.now_us() - began
        await dead.restart()
        await scenario.cluster.loop.delay(3_000_000)

    with_scenario(work, workers=1, copy_rate_bytes=500)
    assert took["witness"] * 3 < took["copy"], took


@pytest.mark.row("S1.50")
def test_returning_member_becomes_voter_again_and_witness_is_removed():
    async def work(scenario):
        new, (leader, other, dead) = scenario.empty_servers()[0], scenario.holders()
        dead.kill()
        await scenario.do("add", scenario.uuid(new), MemberKind.WITNESS)
        await scenario.do("change_type", scenario.uuid(dead), MemberKind.NON_VOTER)
        filling, _ = scenario.command(at=2, after=die)  # 1: its log is kept, 2: the copy begins
        with pytest.raises(Killed):
            await scenario.on(filling.change_type, scenario.uuid(new), MemberKind.VOTER)
        dead.restart()
        await scenario.do("change_type", scenario.uuid(dead), MemberKind.VOTER)
        await scenario.do("remove", scenario.uuid(new))
        assert scenario.state(new) == "TOMBSTONED"
        assert scenario.kinds() == {p.name: "voter" for p in (leader, other, dead)}

    with_scenario(work)
