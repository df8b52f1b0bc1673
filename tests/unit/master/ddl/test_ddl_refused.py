"""Every definition with wrong, missing, oversized or hostile values, sent to a real leader master.

Refused with problem and reason, before anything is replicated: its log has no new entry, and the
bytes of the catalog on its disk are unchanged.
"""

import re

import pytest

from nyala.common.errors import NyalaError, Rejected
from nyala.common.ids import SYS_CATALOG
from nyala.common.options import Options
from nyala.master.catalog import sys_catalog
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_bad_input import BAD, Step
from tests.unit.master.support.ddl_operations import create_request as ranged_request
from tests.unit.master.support.ddl_refused import CREATE, DROP, RECALL
from tests.unit.master.support.master_cluster import with_masters
from tests.unit.master.support.master_create import broken
from tests.unit.master.support.master_helpers import report, server_info


def asked():
    """Yield every invalid call: (name, method, request, message of its refusal)."""
    for what, (request, text) in CREATE.items():
        if request.table.name == "t" and what != "the name of another":
            request.table.name = "new"
        yield f"create: {what}", methods.CREATE_TABLE, request, text
    for what, (steps, text) in BAD.items():
        yield (
            f"alter: {what}",
            methods.ALTER_TABLE,
            pb.AlterTableRequest(name="t", steps=steps),
            text,
        )
    for what, (request, text) in DROP.items():
        yield f"drop: {what}", methods.DROP_TABLE, request, text
    for what, (request, text) in RECALL.items():
        yield f"recall: {what}", methods.RECALL_TABLE, request, text
    wrong = pb.OperationId(client=b"short", sequence=1)
    valid = [Step(owner="me")]
    for method, request in (
        (methods.CREATE_TABLE, broken(name="new")),
        (methods.ALTER_TABLE, pb.AlterTableRequest(name="t", steps=valid)),
        (methods.DROP_TABLE, pb.DropTableRequest(name="t")),
        (methods.RECALL_TABLE, pb.RecallTableRequest(id="x")),
    ):
        request.operation.CopyFrom(wrong)
        yield "a client's id that is none", method, request, "client id is 16 bytes"


async def running(masters, leader, request):
    """Create a table and let its tablets run."""
    await masters.ask(leader, methods.CREATE_TABLE, request)
    catalog = masters.master(leader).leading.current().catalog
    for server in "abc":
        masters.sequence += 1
        heartbeat = pb.HeartbeatRequest(
            server=server_info(server), full=True, report_sequence=masters.sequence,
            tablets=[report(t.id, leader="a", term=1) for t in catalog.tablets()],
        )  # fmt: skip
        await masters.ask(leader, methods.HEARTBEAT, heartbeat)


def disk(masters, leader):
    """The catalog's rows, byte for byte, and the last entry of its log."""
    replica = masters.master(leader).host.find(SYS_CATALOG)
    rows = sys_catalog.scan(replica.machine.view(), (1 << 63) - 1)
    return rows, replica.status().last


@pytest.mark.row("S0.55")
def test_invalid_definition_is_refused_before_replication():
    options = Options(wal_segment_mb=1, tablets_per_table_max=100)

    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await masters.loop.delay(2_000_000)
        await masters.heartbeat("a", "b", "c")
        for name in ("t", "other"):
            request = ranged_request(name)
            await running(masters, leader, request)
        before = disk(masters, leader)
        assert len(before[0]) == 10, "rows: the cluster, three servers, two tables, four tablets"
        seen = 0
        for what, method, request, text in asked():
            await masters.heartbeat("a", "b", "c")
            answer = await refusal(masters.ask(leader, method, request, 20_000))
            assert isinstance(answer, Rejected), f"{what}: {answer!r}"
            assert re.search(text, answer.message), f"{what}: {answer.message}"
            assert answer.message.isprintable(), what
            assert len(answer.message) < 2_000, what
            assert disk(masters, leader) == before, what
            seen += 1
        assert seen > 60
        assert not masters.master(leader).leading.current().memory.locks.held()

    with_masters(work, options=options)


async def refusal(asking):
    try:
        return await asking
    except NyalaError as err:
        return err
