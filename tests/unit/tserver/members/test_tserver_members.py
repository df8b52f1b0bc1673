"""Orders about the members of a tablet's group, through real servers in virtual time."""

import msgspec
import pytest

from nyala.common.errors import (
    AlreadyPresent,
    CasFailed,
    Forbidden,
    InvalidArgument,
    NotFound,
    NotLeader,
    Unavailable,
)
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, refused, started

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")

BY_HAND = msgspec.structs.replace(OPTIONS, repair="off")


def with_group(work, tservers=4):
    async def main(loop):
        group = Group(
            *await started(SimCluster(loop, 5, tservers=tservers, options=BY_HAND, masters=1))
        )
        await work(group)
        group.cluster.look()

    run(main, max_time_s=600)


@pytest.mark.row("S1.20")
def test_leader_adds_and_removes_members_on_order():
    async def work(group):
        new, old = group.empty_servers()[0], group.holders()[1]
        before = group.status().committed_config.id
        made = await group.change(("add", group.member(new)))
        assert (made.config_term, made.config_index) > (before.term, before.index)
        assert [m.uuid for m in made.members if not m.voter] == [group.uuid(new)]
        made = await group.change(("remove", pb.Member(uuid=group.uuid(new))))
        assert len(made.members) == 3
        made = await group.change(("remove", pb.Member(uuid=group.uuid(old))))
        assert group.uuid(old) not in [m.uuid for m in made.members]
        assert group.status().committed_config.id.index == made.config_index

    with_group(work)


@pytest.mark.row("S1.21")
def test_leader_removing_itself_transfers_leadership_and_names_successor():
    async def work(group):
        old = group.leader
        me = pb.Member(uuid=group.uuid(old))
        err = await refused(group.change(("remove", me)))
        assert isinstance(err, NotLeader)
        assert err.details["reason"] == "STEPPING_DOWN"
        await group.cluster.until(lambda: group.leader is not old, "another leads")
        assert err.leader == group.uuid(group.leader)
        assert err.address == group.leader.address
        made = await group.change(("remove", me))
        assert len(made.members) == 2

    with_group(work)


def test_follower_refuses_order_with_leader_hint():
    async def work(group):
        follower, new = group.holders()[1], group.empty_servers()[0]
        for refusal in (
            await refused(group.change(("add", group.member(new)), to=follower)),
            await refused(group.step_down(to=follower)),
        ):
            assert isinstance(refusal, NotLeader)
            assert (refusal.leader, refusal.address) == (
                group.uuid(group.leader),
                group.leader.address,
            )
        missing = await refused(group.change(("add", group.member(new)), to=new))
        assert isinstance(missing, NotFound)
        assert isinstance(await refused(group.step_down(to=new)), NotFound)

    with_group(work)


def test_change_based_on_another_configuration_is_refused_with_both_op_ids():
    async def work(group):
        new = group.empty_servers()[0]
        made = await group.change(("add", group.member(new)))
        err = await refused(
            group.change(("remove", group.member(new)), config_term=7, config_index=9)
        )
        assert isinstance(err, CasFailed)
        now = f"{made.config_term}.{made.config_index}"
        assert err.details == {"expected": "7.9", "found": now}
        assert "7.9" in err.message
        assert now in err.message

    with_group(work)


def test_lagging_non_voter_is_not_promoted_by_order():
    async def work(group):
        new = group.empty_servers()[0]
        at = group.status().committed_config
        voter = group.member(new, voter=True)
        assert "not caught up" in str(await refused(group.change(("add", voter))))
        assert group.status().config == at
        await group.change(("add", group.member(new)))
        err = await refused(group.change(("modify", voter)))
        assert isinstance(err, Unavailable)
        assert len(group.status().config.voters) == 3

    with_group(work)


def test_change_without_reachable_majority_is_refused_before_logging():
    async def work(group):
        live, dead = group.holders()[1:]
        dead.kill()
        await group.cluster.loop.delay(3_000_000)
        at = group.status().config
        err = await refused(group.change(("remove", group.member(live))))
        assert isinstance(err, Unavailable)
        assert "only 1 of the 2 voters after the change respond, and 2 are needed" in err.message
        demote = group.member(live, voter=False)
        assert isinstance(await refused(group.change(("modify", demote))), Unavailable)
        assert group.status().config == at
        assert len((await group.change(("remove", group.member(dead)))).members) == 2

    with_group(work)


@pytest.mark.parametrize("after_ms", [0, 40, 150, 700])
def test_removal_of_live_voter_is_refused_when_remaining_voters_lack_a_majority(after_ms):
    async def work(group):
        live, dead = group.holders()[1:]
        at = group.status().config
        dead.kill()
        await group.cluster.loop.delay(after_ms * 1000)
        err = await refused(group.change(("remove", group.member(live))))
        assert isinstance(err, Unavailable)
        assert "only 1 of the 2 voters after the change respond, and 2 are needed" in err.message
        assert group.status().config == at
        assert len((await group.change(("remove", group.member(dead)))).members) == 2

    with_group(work)


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        ("evict", {}, "one of add, remove, modify"),
        ("add", {"peer_address": ""}, "needs a peer address"),
        ("add", {"uuid": ""}, "or no server"),
        ("remove", {}, "it is not in the configuration"),
        ("modify", {}, "it is not in the configuration"),
    ],
)
def test_invalid_orders_change_nothing(kind, wrong, words):
    async def work(group):
        at = group.status().config
        member = group.member(group.empty_servers()[0])
        for name, value in wrong.items():
            setattr(member, name, value)
        err = await refused(group.change((kind, member)))
        assert isinstance(err, InvalidArgument)
        assert words in err.message
        twice = (kind, member), (kind, member)
        assert isinstance(await refused(group.change(*twice)), InvalidArgument)
        assert isinstance(await refused(group.change()), InvalidArgument)
        assert group.status().config == at

    with_group(work)


def test_orders_from_unknown_sender_or_for_other_server_or_cluster_are_refused():
    async def work(group):
        at, new = group.status().config, group.empty_servers()[0]
        add = ("add", group.member(new))
        assert isinstance(await refused(group.change(add, cluster_id="")), CasFailed)
        assert isinstance(await refused(group.change(add, cluster_id="0" * 32)), Forbidden)
        other = await refused(group.change(add, destination_uuid=group.uuid(new)))
        assert isinstance(other, InvalidArgument)
        fence = pb.Fence(catalog_incarnation="0" * 32, term=99)
        refusal = await refused(group.change(add, cluster_id="", fence=fence))
        assert isinstance(refusal, CasFailed)
        assert group.status().config == at

    with_group(work)


@pytest.mark.row("S0.48")
def test_copy_is_started_and_cancelled_only_by_leader_master_or_operator():
    async def work(group):
        new, leader = group.empty_servers()[0], group.leader
        begin = pb.StartCopyRequest(
            source_uuid=group.uuid(leader), source_address=leader.address, tablet_id=group.tablet
        )
        end = pb.CancelCopyRequest(tablet_id=group.tablet)
        known = group.fence(new)
        older = pb.Fence(catalog_incarnation=known.catalog_incarnation, term=known.term - 1)
        other = pb.Fence(catalog_incarnation="0" * 32, term=99)
        for method, order in ((methods.START_COPY, begin), (methods.CANCEL_COPY, end)):
            order.destination_uuid = group.uuid(new)
            for fence in (pb.Fence(), older, other):
                order.fence.CopyFrom(fence)
                assert isinstance(await refused(group.ask(new, method, order)), CasFailed)
            order.cluster_id = "0" * 32
            assert isinstance(await refused(group.ask(new, method, order)), Forbidden)
        assert not new.server.host.copies.progress()
        begin.cluster_id = ""
        begin.fence.CopyFrom(known)
        assert (await group.ask(new, methods.START_COPY, begin)).copy.tablet_id == group.tablet

    with_group(work)


def test_every_order_that_changes_a_replica_carries_a_fence():
    asked = {m.name: m.input_type for m in pb.DESCRIPTOR.services_by_name["TabletAdmin"].methods}
    free = {name for name, request in asked.items() if "fence" not in request.fields_by_name}
    assert free == {"ListTablets", "CopyStatus", "HoldHistory"}, (
        "HoldHistory is a request of clients and expires"
    )


def test_operator_deletion_requires_cluster_id():
    async def work(group):
        stray = group.holders()[1]

        def order(**more):
            return pb.DeleteTabletRequest(
                destination_uuid=group.uuid(stray), tablet_id=group.tablet, reason="test", **more
            )

        err = await refused(group.ask(stray, methods.DELETE_TABLET, order(cluster_id="0" * 32)))
        assert isinstance(err, Forbidden)
        whole = order(cluster_id=group.cluster_id, for_good=True)
        err = await refused(group.ask(stray, methods.DELETE_TABLET, whole))
        assert isinstance(err, InvalidArgument), "its vote goes by order of the masters only"
        assert group.state(stray) == "RUNNING"
        for _ in range(2):
            await group.ask(stray, methods.DELETE_TABLET, order(cluster_id=group.cluster_id))
        assert group.state(stray) == "TOMBSTONED"

    with_group(work)


def test_leadership_is_transferred_to_named_or_most_up_to_date_member():
    async def work(group):
        old, second, third = group.holders()
        assert await group.step_down(successor=group.uuid(third)) == group.uuid(third)
        assert group.leader is third
        again = await group.step_down(old, group.uuid(third))
        assert again == group.uuid(third), "the target leads already"
        second.kill()
        await group.cluster.loop.delay(3_000_000)
        assert await group.step_down() == group.uuid(old)
        err = await refused(group.step_down(successor=group.uuid(group.empty_servers()[0])))
        assert isinstance(err, InvalidArgument)

    with_group(work)


def test_unresponsive_successor_leaves_leader_in_place():
    async def work(group):
        leader, second, _ = group.holders()
        second.kill()
        err = await refused(group.step_down(successor=group.uuid(second)))
        assert isinstance(err, Unavailable)
        assert group.leader is leader
        await group.cluster.until(
            lambda: group.state(leader) == "RUNNING", "the leader accepts writes again"
        )

    with_group(work)


def test_witness_is_created_where_configuration_names_it():
    async def work(group):
        new, leader = group.empty_servers()[0], group.leader

        def order():
            status = group.status()
            return pb.CreateWitnessRequest(
                destination_uuid=group.uuid(new),
                cluster_id=group.cluster_id,
                tablet_id=group.tablet,
                consensus=convert.consensus_to_proto(status.committed_config, status.term, None),
                start_term=status.applied.term,
                start_index=status.applied.index,
                start_stamp=status.applied_stamp,
            )

        assert isinstance(
            await refused(group.ask(new, methods.CREATE_WITNESS, order())), InvalidArgument
        )
        await group.change(("add", group.member(new, electable=False)))
        early = order()
        early.start_index = 1
        err = await refused(group.ask(new, methods.CREATE_WITNESS, early))
        assert isinstance(err, InvalidArgument)
        for _ in range(2):
            await group.ask(new, methods.CREATE_WITNESS, order())
        await group.cluster.until(
            lambda: all(p.match for p in group.status().peers), "all peers have matching logs"
        )
        await group.change(("modify", group.member(new, voter=True, promote=True, electable=False)))
        assert len(group.status().committed_config.voters) == 4
        err = await refused(group.ask(leader, methods.CREATE_WITNESS, order()))
        assert isinstance(err, InvalidArgument | AlreadyPresent)

    with_group(work)
