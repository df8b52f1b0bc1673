"""Quotas of bytes: a table over its quota takes deletes only, and rows again once it is not over."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from nyala.admin.fencing import Fence
from nyala.common.errors import NyalaError, QuotaExceeded
from nyala.common.ids import TableId, TabletId
from nyala.common.metrics import Metrics
from nyala.common.schema import from_arrow
from nyala.env.clock import SystemClock
from nyala.replica.clock_offsets import MasterClocks
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tserver.master_responses import MasterResponses
from nyala.tserver.masters import MasterList
from nyala.tserver.quotas.hosted_quotas import HostedQuotas
from nyala.wire import status
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tserver.support.staged_group import T1, T2, StagedGroup, with_group

SCHEMA = from_arrow(pa.schema([pa.field("k", pa.int64(), nullable=False)]), ["k"])
OVER = pb.TableQuota(table_id="t", bytes=120, over=True)


def info(limit: str | None = "100") -> TabletInfo:
    options = {} if limit is None else {"max_bytes": limit}
    return TabletInfo(TabletId("x"), TableId("t"), "events", SCHEMA, options=options)


def rows(*codes: int | None) -> pa.RecordBatch:
    """Return a batch of rows with an operation each."""
    keys = pa.array(np.arange(len(codes)), pa.int64())
    return pa.record_batch([keys, pa.array(codes, pa.uint8())], names=["k", "_op"])


def quotas(*states: pb.TableQuota) -> HostedQuotas:
    made = HostedQuotas(Metrics())
    made.take(states)
    return made


@pytest.mark.parametrize("op", [o for o in RowOp if o is not RowOp.MIXED])
def test_table_over_its_quota_takes_deletes_only(op: RowOp) -> None:
    made = quotas(OVER)
    if op in (RowOp.DELETE, RowOp.DELETE_IGNORE):
        made.check(info(), op, rows())
        return
    with pytest.raises(QuotaExceeded, match="has 120 bytes, and its quota is 100") as refused:
        made.check(info(), op, rows())
    assert refused.value.details == {"table": "events", "bytes": "120", "limit": "100"}


def test_mixed_batches_are_taken_if_every_row_is_deleted() -> None:
    made, mixed = quotas(OVER), RowOp.MIXED
    made.check(info(), mixed, rows(RowOp.DELETE, RowOp.DELETE_IGNORE))
    made.check(info(), mixed, rows())
    for codes in ((RowOp.DELETE, RowOp.UPSERT), (RowOp.UPDATE,), (None, RowOp.DELETE)):
        with pytest.raises(QuotaExceeded):
            made.check(info(), mixed, rows(*codes))


def test_table_that_is_not_over_or_has_no_quota_any_more_takes_rows() -> None:
    batch = rows()
    quotas().check(info(), RowOp.UPSERT, batch)
    quotas(OVER).check(info(None), RowOp.UPSERT, batch)
    under = pb.TableQuota(table_id="t", bytes=90)
    quotas(OVER, under).check(info(), RowOp.UPSERT, batch)
    quotas(pb.TableQuota(table_id="u", bytes=9, over=True)).check(info(), RowOp.UPSERT, batch)


def test_quota_that_was_raised_above_the_size_lets_rows_in_before_the_masters_answer() -> None:
    """The masters give no answer while some tablet of the table has no leader."""
    made = quotas(OVER)
    made.check(info("121"), RowOp.UPSERT, rows())
    with pytest.raises(QuotaExceeded):
        made.check(info("120"), RowOp.UPSERT, rows())


class Instance:
    """Identity of a server of the cluster c."""

    instance = SimpleNamespace(cluster_id="c", masters=[])

    async def learn(self, **_: object) -> None: ...


def test_answers_of_masters_that_lead_no_more_are_not_taken() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        made, fence, identity = HostedQuotas(Metrics()), Fence(), cast("Any", Instance())
        masters = MasterList(cast("Any", SimpleNamespace(clock=clock)), identity, ["m:1"], 1000)
        responses = MasterResponses(identity, fence, masters, MasterClocks(clock), made)
        answer = pb.HeartbeatResponse(
            cluster_id="c", catalog_incarnation="i", master_addresses=["m:1"], leader=True, term=5
        )
        await responses.take("m:1", answer)
        answer.quotas.append(OVER)
        answer.term = 4
        await responses.take("m:1", answer)
        made.check(info(), RowOp.UPSERT, rows())
        answer.term, answer.leader = 5, False
        await responses.take("m:1", answer)
        made.check(info(), RowOp.UPSERT, rows())
        answer.leader = True
        await responses.take("m:1", answer)
        with pytest.raises(QuotaExceeded):
            made.check(info(), RowOp.UPSERT, rows())

    asyncio.run(scenario())


def refusal(result: pb.WriteResult) -> NyalaError | None:
    return status.from_proto(result.error) if result.HasField("error") else None


async def set_quota(group: StagedGroup, text: str) -> None:
    step = pb.AlterStep(option=pb.AlterStep.Text(name="max_bytes", text=text))

    async def alter() -> None:
        group.table = await group.core.ddl.alter_table(group.table, [step])

    await group.on(alter)


async def until_refused(group: StagedGroup, refused: bool) -> Any:
    """Write until a row is refused for the quota, or until it is not; return the refusal."""
    for key in range(1_000, 1_100):
        found = refusal(await group.on(group.write, key, key))
        assert found is None or isinstance(found, QuotaExceeded), found
        if (found is not None) == refused:
            return found
        await group.pause(200)
    raise AssertionError(f"a row was never {'refused' if refused else 'taken'}")


def test_leaders_refuse_rows_once_the_leader_master_has_added_the_sizes() -> None:
    async def work(group: StagedGroup) -> None:
        assert refusal(await group.on(group.write, 1, 1)) is None
        stage = pb.StageHeader(transaction=T1, part="p", number=0)
        header = group.header(group.tablet, T1, 1, stage=stage)
        assert refusal(await group.on(group.put, header, {3: 3})) is None
        await set_quota(group, "10")
        await until_refused(group, True)
        assert refusal(await group.on(group.put, header, {3: 3})) is None, "it is staged already"
        wanted = pb.StageHeader(transaction=T2, part="p", number=0)
        other = group.header(group.tablet, T2, 1, stage=wanted)
        assert isinstance(refusal(await group.on(group.put, other, {2: 2})), QuotaExceeded)
        facts = await group.on(group.core.describe, "t")
        assert facts.bytes >= facts.quota_bytes == 10
        await set_quota(group, "100000000")
        await until_refused(group, False)
        assert refusal(await group.on(group.write, 5, 5)) is None
        facts = await group.on(group.core.describe, "t")
        assert 0 < facts.bytes < facts.quota_bytes

    with_group(work)


def test_next_leader_of_the_tablet_and_next_leader_master_refuse_too() -> None:
    async def work(group: StagedGroup) -> None:
        await set_quota(group, "1")
        await until_refused(group, True)
        await group.on(group.transfer)
        await until_refused(group, True)
        master = group.cluster.leader_master()
        assert master is not None
        master.kill()
        for key in range(50, 60):
            assert isinstance(refusal(await group.on(group.write, key, key)), QuotaExceeded)
            await group.pause(500)

    with_group(work)
