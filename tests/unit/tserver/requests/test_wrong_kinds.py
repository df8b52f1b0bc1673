"""Requests about rows to the tablet of a journal, and steps to that of a table, are refused by name."""

from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.wire import flight, methods
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.unit.tserver.support.journal_group import JournalGroup, entry, with_journal
from tests.unit.tserver.support.tablet_group import refused


async def put(group: JournalGroup, tablet: str) -> pb.WriteResult:
    """Send a batch of one row to a tablet at the journal's leader."""
    batch = pa.RecordBatch.from_pydict({"k": pa.array([1], pa.int64())})
    header = pb.WriteHeader(
        request=1, tablet_id=tablet, client_id=b"w" * 16, sequence=1, first_outstanding=1,
        op=pb.UPSERT, column_ids=[0],
    )  # fmt: skip

    async def outgoing() -> Any:
        yield flight.schema_data(batch.schema)
        yield flight.batch_data(batch, header.SerializeToString())

    async def call() -> pb.WriteResult:
        rpc = group.core.env.rpc
        stream = rpc.stream(group.leader.address, methods.DO_PUT, outgoing())
        (answer,) = [a async for a in stream]
        return pb.WriteResult.FromString(answer.app_metadata)

    result: pb.WriteResult = await group.on(call)
    return result


async def got(group: JournalGroup, tablet: str) -> reads_pb2.GetAnswer:
    """Ask the journal's leader for the row of a key of a tablet."""
    part = reads_pb2.GetPart(tablet_id=tablet, column_ids=[0], keys=[b"k"])
    request = reads_pb2.GetRequest(request=3, timeout_ms=1000, parts=[part])
    response = await group.answer(group.leader, methods.GET, request)
    (answer,) = response.answers
    return answer  # type: ignore[no-any-return]


def test_writes_and_reads_of_rows_at_a_journal_are_refused_by_name():
    async def work(group):
        (first,) = await group.append("a")
        says = f"tablet {group.tablet} belongs to the journal 'ops', and the request is for a table"
        written = await put(group, group.tablet)
        assert written.error.code == InvalidArgument.code
        assert says in written.error.message
        answer = await got(group, group.tablet)
        assert answer.error.code == InvalidArgument.code
        assert says in answer.error.message
        wait = reads_pb2.AwaitChangesRequest(tablet_ids=[group.tablet], wait_ms=100)
        refusal = await refused(group.ask(group.leader, methods.AWAIT_CHANGES, wait))
        assert isinstance(refusal, InvalidArgument)
        assert says in refusal.message
        assert await group.read() == [b"a"]
        assert group.journals()[0].state.last == first

    with_journal(work)


def test_batches_of_steps_at_a_table_are_refused_by_name():
    async def work(group):
        table = await group.cluster.create_table(group.core, "t")
        rows = table.tablets[0].id
        request = jb.JournalStepsRequest(
            tablet_id=rows, client_id=b"j" * 16, sequence=1, first_outstanding=1,
            steps=[jb.JournalStep(changes=[entry("a")])],
        )  # fmt: skip
        where = group.cluster.leader_of(rows)
        refusal = await refused(group.ask(where, methods.JOURNAL_STEPS, request))
        assert isinstance(refusal, InvalidArgument)
        assert (
            f"tablet {rows} belongs to the table 't', and the request is for a journal"
            in refusal.message
        )

    with_journal(work)
