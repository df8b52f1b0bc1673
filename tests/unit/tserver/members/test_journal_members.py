"""The group of a journal as that of any tablet: witnesses, repair, lost majorities, drops and recalls."""

from nyala.operate.member_steps import MemberKind
from nyala.operate.survivors import ServerEndpoint
from nyala.operate.unsafe_config import execute, plan
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tserver.support.journal_group import KIND, with_journal
from tests.unit.tserver.support.tablet_group import refused


def test_witness_of_journal_votes_without_content():
    async def work(group):
        await group.append("a")
        new, (_, other, leaving) = group.empty_servers()[0], group.holders()
        await group.do("remove", group.uuid(leaving))
        await group.do("add", group.uuid(new), MemberKind.WITNESS)
        await group.append("b")
        sums = await group.agreed()
        assert sorted(s.note for s in sums)[-1] == "skipped: a witness, it has no data"
        assert [s.rows for s in sums if s.at] == [2, 2]
        other.kill()
        await group.append("c")
        assert await group.read() == [b"a", b"b", b"c"]

    with_journal(work)


def test_masters_replace_lost_replica_of_journal():
    async def work(group):
        await group.append(*"abc")
        lost = group.holders()[1]
        new = group.empty_servers()[0]
        lost.kill()
        await group.cluster.until(
            lambda: group.state(new) == "RUNNING", "the new server has a replica", 120
        )
        await group.cluster.until(
            lambda: group.kinds().get(new.name) == "voter" and lost.name not in group.kinds(),
            "the new member is a voter", 120,
        )  # fmt: skip
        await group.append("d")
        assert [s.rows for s in await group.agreed()] == [4] * 3

    with_journal(
        work, repair="on", member_failed_after_ms=3000, repair_interval_ms=200,
        tserver_unresponsive_ms=2000, copy_retry_ms=2000,
    )  # fmt: skip


def test_unsafe_recovery_of_journal_reuses_no_id():
    async def work(group):
        ids = await group.append("a", "b")
        leader, second, last = group.holders()
        await group.cluster.until(
            lambda: len(group.journals()[2].state.logs) == 1,
            "the third replica has applied the creation of the log",
        )
        last.kill()
        ids += await group.append("c")  # the later survivor lacks it
        leader.kill()
        second.kill()
        await last.start()
        place, keep = ServerEndpoint("", last.address), [group.uuid(last)]
        todo = await group.on(plan, group.core.env, group.tablet, place, keep)
        assert (await group.on(execute, group.core.env, todo)).changed
        await group.cluster.until(lambda: group.leader is last, "the survivor leads", 60)
        (new,) = await group.append("d")
        assert new > max(ids), "a lost id is not reused"
        assert await group.read() == [b"a", b"b", b"d"]

    with_journal(work, loses=True)


def test_dropped_journal_is_recalled_with_its_content_until_it_is_purged():
    async def work(group):
        await group.append("a")
        drop = pb.DropTableRequest(name="ops", kind=KIND, reserve_seconds=3600)
        await group.define(methods.DROP_TABLE, drop)
        refusal = await refused(group.describe("ops"))
        assert refusal.code == "NOT_FOUND"
        assert "no journal 'ops'" in refusal.message
        recall = pb.RecallTableRequest(id=group.id, new_name="work", kind=KIND)
        await group.define(methods.RECALL_TABLE, recall)
        assert (await group.describe("work")).id == group.id
        await group.append("b")
        assert await group.read() == [b"a", b"b"]
        await group.define(methods.DROP_TABLE, pb.DropTableRequest(name="work", kind=KIND))
        await group.cluster.until(
            lambda: group.holders() == [] or {group.state(p) for p in group.cluster.tservers}
            <= {"", "TOMBSTONED"},
            "its replicas are deleted",
        )  # fmt: skip

    with_journal(work)
