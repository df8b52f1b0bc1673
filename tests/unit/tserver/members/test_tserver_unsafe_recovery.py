"""Unsafe recovery of a tablet without a majority, with the server code on virtual time.

The checkers of the simulator run as well: no committed entry is lost if the survivor had all of them.
"""

import pyarrow as pa
import pytest

from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import Forbidden, InvalidArgument, NyalaError
from nyala.operate.doctor.steps import risk_of
from nyala.operate.survivors import ServerEndpoint, has_majority, known_lost, of_tablets
from nyala.operate.unsafe_config import execute, plan
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, refused, started

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")


def with_group(work, tservers=3):
    async def main(loop):
        await work(Group(*await started(SimCluster(loop, 7, tservers=tservers, masters=1))))

    run(main, max_time_s=600)


def places(group):
    return [ServerEndpoint(group.uuid(p), p.address) for p in group.cluster.tservers]


async def survivors(group):
    """Return the survivors that the tool finds, the most up-to-date first."""
    found = await group.on(of_tablets, group.core.env, places(group), [group.tablet])
    return found.get(group.tablet, [])


async def planned(group, target, *keep):
    place = ServerEndpoint("", target.address)
    uuids = [group.uuid(p) for p in keep]
    return await group.on(plan, group.core.env, group.tablet, place, uuids)


def order(group, target, *keep, **more):
    return group.ask(
        target,
        methods.UNSAFE_CHANGE_CONFIG,
        pb.UnsafeChangeConfigRequest(
            **{
                "destination_uuid": group.uuid(target), "cluster_id": group.cluster_id,
                "tablet_id": group.tablet, "keep": [group.uuid(p) for p in keep], **more,
            }
        ),
    )  # fmt: skip


@pytest.mark.row("S1.36", "S1.40", "S1.42")
def test_unsafe_recovery_lets_survivor_continue_and_ignores_returning_members():
    async def work(group):
        leader, second, last = group.holders()
        await group.change(("modify", group.member(second, voter=True, replace=True)))
        before = group.status(leader).last
        await group.cluster.until(
            lambda: group.status(last).commit == before.index,
            "the last server has the commit index",
        )
        leader.kill()
        second.kill()
        (one,) = await survivors(group)
        assert not has_majority([one])
        assert (one.place.uuid, one.last, one.commit) == (group.uuid(last), before, before.index)
        todo = await planned(group, last, last)
        assert (todo.risks, todo.term) == ((), one.term + TERM_GAP)
        assert set(todo.removed) == {group.uuid(leader), group.uuid(second)}
        outcome = await group.on(execute, group.core.env, todo)
        assert (outcome.changed, outcome.last) == (True, one.last)
        assert known_lost(todo.known, outcome.last) is None
        again = await planned(group, last, last)
        assert again.done
        assert not (await group.on(execute, group.core.env, again)).changed
        await second.restart()
        await group.cluster.loop.delay(10_000_000)
        status = group.status(last)
        assert (status.role, group.leader) == ("LEADER", last)
        assert status.committed_config.id >= outcome.config  # the masters may give it members again
        assert group.uuid(leader) in status.committed_config.lost

    with_group(work)


@pytest.mark.row("S1.38")
def test_unsafe_recovery_of_one_tablet_leaves_other_tablets_unchanged():
    async def work(group):
        other = (await group.cluster.create_table(group.core, "u")).tablets[0].id
        _, second, last = group.holders()
        dead = [p for p in group.cluster.tservers if p is not last]
        for process in dead:
            process.kill()
        await group.cluster.loop.delay(5_000_000)
        replica = last.server.host.find(other)
        before = replica.status()
        todo = await planned(group, last, last)
        assert (await group.on(execute, group.core.env, todo)).changed
        await group.cluster.until(
            lambda: group.cluster.leader_of(group.tablet) is last, "the survivor leads"
        )
        status = replica.status()
        assert last.server.host.find(other) is replica, "the replica was not reopened"
        assert (status.config, status.last) == (before.config, before.last)
        assert not replica.is_leader
        await second.restart()
        await group.cluster.until(
            lambda: group.cluster.leader_of(other) is not None,
            "the other tablet has a leader with one returned server",
        )
        assert replica.status().config.lost == ()

    with_group(work)


@pytest.mark.row("S1.41")
def test_unnecessary_or_mismatched_unsafe_recovery_is_refused():
    async def work(group):
        leader, second, third = group.holders()
        for target in (leader, second):
            assert (
                "a majority of its voters answers"
                in (await planned(group, target, target)).risks[0]
            )
            err = await refused(order(group, target, target))
            assert isinstance(err, InvalidArgument)
            assert "has a leader" in err.message
        second.kill()
        third.kill()
        await group.cluster.loop.delay(5_000_000)
        for wrong, kind in (
            ({"cluster_id": ""}, InvalidArgument),
            ({"cluster_id": "another"}, Forbidden),
            ({"destination_uuid": group.uuid(second)}, InvalidArgument),
            ({"term": 10_000_000}, InvalidArgument),
            ({"keep": []}, InvalidArgument),
            ({"keep": ["x"]}, InvalidArgument),
            ({"keep": [group.uuid(second)]}, InvalidArgument),
            ({"tablet_id": "f" * 32}, NyalaError),
        ):
            at = group.status(leader)
            assert isinstance(await refused(order(group, leader, leader, **wrong)), kind), wrong
            assert group.status(leader).config == at.config
            assert group.status(leader).last == at.last
        risks = (await planned(group, leader, leader, second)).risks
        assert "do not answer" in risks[0]

    with_group(work)


def test_survivor_has_what_only_a_witness_had_before_it_leads():
    async def work(group):
        made, witness, last = await left_of_five(group)
        newest = group.status(witness).last
        await last.start()
        found = await survivors(group)
        (target,) = [s for s in found if s.place.uuid == group.uuid(last)]
        assert target.last < newest
        risk = risk_of(target, found)
        assert (risk.last, risk.known_lost) == (newest, None)
        assert f"from the witness {group.uuid(witness)}" in "\n".join(risk.lines)
        todo = await planned(group, last, last, witness)
        assert todo.risks == ()
        outcome = await group.on(execute, group.core.env, todo)
        assert outcome.last == newest
        assert known_lost(todo.known, outcome.last) is None
        assert await rows_of(group, made) == [7]

    with_group(work, tservers=5)


def test_entries_that_a_witness_has_and_the_survivor_does_not_get_are_a_risk():
    async def work(group):
        _, witness, last = await left_of_five(group)
        group.cluster.network.partition([last.name], [witness.name])
        await last.start()
        (risk,) = (await planned(group, last, last, witness)).risks
        assert f"the witness {group.uuid(witness)} at {witness.address} has entries up to" in risk
        assert "would be lost" in risk

    with_group(work, tservers=5)


async def left_of_five(group):
    """Make a table of five voters, one of them a witness; kill all others.

    Returns:
        The table; the witness; a server that was down at the last write, of the row 7, and does not run.
    """
    made = await group.cluster.create_table(group.core, "u", replicas=5)
    group.tablet = made.tablets[0].id
    leader, witness, *lost, last = group.holders()
    await group.change(("modify", group.member(witness, voter=True, electable=False)))
    last.kill()
    await written(group, made, 7)
    end = group.status(leader).last
    await group.cluster.until(lambda: group.status(witness).last == end, "the witness has the row")
    for process in (leader, *lost):
        process.kill()
    return made, witness, last


async def rows_of(group, table):
    """Return the keys of all rows of an open table, as its leader has them."""

    async def read():
        tokens = await group.core.reader.tokens(table, ReadSpec(latest=True), 20_000)
        parts = await group.core.reader.collect_all(tokens, lambda _header: None)
        return sorted(k for part in parts for b in part for k in b.column("k").to_pylist())

    return await group.on(read)


async def written(group, table, number):
    """Write one row of an open table."""
    numbers = pa.array([number])
    rows = pa.record_batch([numbers, numbers], names=["k", "v"])
    session = group.core.session
    await group.on(
        lambda: session.write(table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000)
    )
