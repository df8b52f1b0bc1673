"""Commands about members, through real servers in virtual time: whole, cut off at each order, refused."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nyala.cli import ksck_checksum
from nyala.cli.member_orders import CopyFailed
from nyala.cli.member_steps import Kind
from nyala.cli.membership import Membership
from nyala.cli.rescue import carry_out, plan
from nyala.cli.survivors import Place
from nyala.client.core import Core
from nyala.common.errors import InvalidArgument, NotFound, TimedOut, Unavailable
from nyala.raft.status import Role
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.cluster import CLIENT_OPTIONS, OPTIONS, SimCluster
from tests.sim.loop import run
from tests.unit.tserver.members_story import Group, refused, started

ORDERS = (
    methods.CHANGE_CONFIG, methods.LEADER_STEP_DOWN, methods.CREATE_WITNESS, methods.START_COPY,
    methods.CANCEL_COPY, methods.DELETE_TABLET,
)  # fmt: skip


class Killed(Exception):
    """The command's process is gone."""


class Wire:
    """Carries a command's calls, counts its orders, and lets something happen at one of them."""

    def __init__(self, rpc, at=0, before=None, after=None):
        self._rpc = rpc
        self._at, self._before, self._after = at, before, after
        self.given = self.answered = 0

    async def call(self, address, method, request, *, timeout_ms):
        ordered = method in ORDERS
        self.given += ordered
        if ordered and self.given == self._at and self._before:
            self._before()
        answer = await self._rpc.call(address, method, request, timeout_ms=timeout_ms)
        self.answered += ordered
        if ordered and self.answered == self._at and self._after:
            self._after()
        return answer

    def __getattr__(self, name):
        return getattr(self._rpc, name)


class Calls:
    """A wire whose calls go through a function."""

    def __init__(self, call, rpc):
        self.call, self._rpc = call, rpc

    def __getattr__(self, name):
        return getattr(self._rpc, name)


def die():
    raise Killed


class Story(Group):
    """A group, and commands about it."""

    def command(self, patience_ms=20_000, **wire):
        """Return a fresh command, and its wire."""
        self.cluster.client()
        carried: Any = Wire(self.core.env.rpc, **wire)
        addresses = [m.address for m in self.cluster.masters]
        process = self.cluster.clients[-1]
        assert process.env is not None
        assert process.life is not None
        env = replace(process.env, rpc=carried)
        core = process.life.inside(Core, env, addresses, CLIENT_OPTIONS)
        return Membership(core, self.tablet, patience_ms=patience_ms), carried

    async def do(self, name, *args, **more):
        """Run one command to its end."""
        membership, _ = self.command(**more)
        await self.on(getattr(membership, name), *args)
        return membership.done

    def kinds(self):
        """What each server is in the committed configuration, by its name."""
        config = self.status().committed_config
        told = {}
        for p in self.cluster.tservers:
            member = config.get(self.uuid(p))
            if member is not None:
                words = "voter" if member.voter else "non-voter"
                told[p.name] = words if member.electable else f"witness {words}"
        return told

    async def verify(self):
        """All replicas have the same rows, and the masters name those of the configuration."""

        async def compared():
            return await ksck_checksum.compare(self.core, 20_000)

        members = {self.uuid(p) for p in self.cluster.tservers if p.name in self.kinds()}

        async def looked_up():
            table = await self.core.open_table("t")
            return {u for u, _ in table.tablets[0].replicas}

        for _ in range(100):
            if await self.on(looked_up) == members:
                break
            await self.cluster.loop.delay(100_000)
        assert await self.on(looked_up) == members
        sums, problems = await self.on(compared)
        assert problems == []
        return sums


def with_story(work, workers=0, repair="off", **more):
    """Run a story on four tablet servers; with `repair`, masters have a mind of their own meanwhile."""

    async def main(loop):
        options = msgspec.structs.replace(OPTIONS, repair=repair, **more)
        cluster = SimCluster(loop, 5, tservers=4, options=options)
        story = Story(*await started(cluster))
        await cluster.add_workers(workers)
        await work(story)
        await cluster.finish()
        await story.verify()

    run(main, max_time_s=900)


@pytest.mark.row("S1.28", "S1.22", "A10")
def test_a_move_under_load_leaves_a_new_voter_and_a_tombstone():
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
def test_a_move_whose_command_is_killed_goes_on_when_it_is_run_again(at, answered):
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


@pytest.mark.parametrize("who", ["source", "target", "third"])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_server_that_dies_in_a_move_and_comes_back_ends_nothing(at, who):
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
def test_a_group_shrinks_to_one_and_grows_to_three_on_other_servers():
    async def work(story):
        first, second, third = story.having()
        await story.do("remove", story.uuid(second))
        await story.do("remove", story.uuid(first))
        assert story.kinds() == {third.name: "voter"}
        err = await refused(story.do("remove", story.uuid(third), patience_ms=2_000))
        assert isinstance(err, InvalidArgument)
        for server in (first, second):
            await story.do("add", story.uuid(server))
        assert story.kinds() == {p.name: "voter" for p in (first, second, third)}
        assert await story.do("add", story.uuid(first)) == []

    with_story(work, workers=2)


@pytest.mark.row("S1.51")
def test_a_witness_stands_in_for_a_dead_member_and_gets_the_data_later():
    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        dead.kill()
        await story.do("add", story.uuid(new), Kind.WITNESS)
        await story.do("change_type", story.uuid(dead), Kind.NON_VOTER)
        assert story.kinds() == {
            leader.name: "voter", other.name: "voter", new.name: "witness voter", dead.name: "non-voter",
        }  # fmt: skip
        await story.do("change_type", story.uuid(new), Kind.VOTER)
        assert story.kinds()[new.name] == "voter"
        await story.do("remove", story.uuid(dead))
        dead.restart()
        await story.cluster.loop.delay(3_000_000)
        assert story.state(dead) in ("RUNNING", "CONFIGURING"), "nobody has told it"
        await story.do("remove", story.uuid(dead))
        assert story.state(dead) == "TOMBSTONED"
        assert story.kinds() == {p.name: "voter" for p in (leader, other, new)}

    with_story(work, workers=2)


def test_who_is_silent_for_a_moment_is_not_left_with_its_data():
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
def test_a_witness_makes_a_group_whole_long_before_a_copy_does():
    """In virtual time, with copies that are slow by their throttle; `./run bench copy` measures it."""
    took = {}

    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        await story.cluster.loop.delay(5_000_000)  # some rows
        dead.kill()
        began = story.cluster.loop.now_us()
        await story.do("add", story.uuid(new), Kind.WITNESS)
        await story.do("remove", story.uuid(dead))
        took["witness"] = story.cluster.loop.now_us() - began
        other.kill()
        await story.cluster.loop.delay(3_000_000)
        assert story.leader is leader, "one more may die, and the others are a majority"
        await other.restart()
        began = story.cluster.loop.now_us()
        await story.do("change_type", story.uuid(new), Kind.VOTER)
        took["copy"] = story.cluster.loop.now_us() - began
        await dead.restart()
        await story.cluster.loop.delay(3_000_000)

    with_story(work, workers=1, copy_rate_bytes=500)
    assert took["witness"] * 3 < took["copy"], took


@pytest.mark.row("S1.50")
def test_the_dead_that_returns_in_time_is_a_voter_again_and_the_witness_goes():
    async def work(story):
        new, (leader, other, dead) = story.without()[0], story.having()
        dead.kill()
        await story.do("add", story.uuid(new), Kind.WITNESS)
        await story.do("change_type", story.uuid(dead), Kind.NON_VOTER)
        filling, _ = story.command(at=2, after=die)  # 1: its log is kept, 2: the copy begins
        with pytest.raises(Killed):
            await story.on(filling.change_type, story.uuid(new), Kind.VOTER)
        dead.restart()
        await story.do("change_type", story.uuid(dead), Kind.VOTER)
        await story.do("remove", story.uuid(new))
        assert story.state(new) == "TOMBSTONED"
        assert story.kinds() == {p.name: "voter" for p in (leader, other, dead)}

    with_story(work)


def test_what_cannot_be_is_refused_and_nothing_changes():
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
            (story.do("change_type", c, Kind.VOTER), "is no member"),
            (story.do("change_type", a, Kind.WITNESS), "cannot be a witness"),
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


def test_a_voter_that_lost_its_replica_is_not_simply_copied():
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
        err = await refused(story.do("add", story.uuid(lost), Kind.WITNESS))
        assert "cannot be a witness" in err.message
        await story.do("add", story.uuid(lost))
        assert story.kinds()[lost.name] == "voter"

    with_story(work)


def test_a_command_that_cannot_go_on_says_at_what_and_why():
    async def work(story):
        live, dead = story.having()[1:]
        dead.kill()
        await story.cluster.loop.delay(3_000_000)
        err = await refused(story.do("remove", story.uuid(live), patience_ms=3_000))
        assert isinstance(err, TimedOut)
        for part in ("nothing went on for 3 s", "remove ", "1 answer, and 2 are needed", "again"):
            assert part in err.message
        dead.restart()
        await story.cluster.loop.delay(3_000_000)

    with_story(work)


@pytest.mark.row("S1.8")
def test_a_copy_that_fails_again_and_again_ends_the_command_with_its_reason():
    async def work(story):
        new, old = story.without()[0], story.having()[1]
        faults = new.disk.faults
        faults.capacity_bytes = new.disk.used_bytes() + 1000
        err = await refused(story.do("move", story.uuid(old), story.uuid(new)))
        assert isinstance(err, CopyFailed)
        assert "the copy needs" in err.message
        faults.capacity_bytes = None
        await story.do("remove", story.uuid(new))

    with_story(work)


def test_one_program_moves_a_replica_to_and_fro_as_often_as_it_likes():
    async def work(story):
        membership, _ = story.command()
        for _ in range(8):
            old = story.having()[1]
            new = next(p for p in story.cluster.tservers if p.name not in story.kinds())
            await story.on(membership.move, story.uuid(old), story.uuid(new))
            assert new.name in story.kinds()

    with_story(work)


@pytest.mark.parametrize("seed_moves", [1, 2, 3])
def test_a_move_and_masters_that_repair_do_not_undo_each_other(seed_moves):
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
def test_who_was_given_up_is_deleted_before_it_is_added_again():
    async def work(story):
        leader, second, last = story.having()
        leader.kill()
        second.kill()
        place = Place("", last.address)
        todo = await story.on(plan, story.core.env, story.tablet, place, [story.uuid(last)])
        await story.on(carry_out, story.core.env, todo)
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
def test_leadership_is_handed_over_by_command():
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
