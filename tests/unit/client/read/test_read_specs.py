"""Described reads before they run; the client id of a definition."""

import asyncio
from typing import Any

import grpc
import pyarrow as pa
import pytest

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.read.read_spec import ReadSpec, changes_spec, make_token, scan_spec
from nyala.common.alteration import RenameColumn, alter
from nyala.common.errors import Unavailable
from nyala.common.schema import from_arrow
from nyala.env.env import system_env
from nyala.wire import methods, status
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.unconnected import unconnected_table

SCHEMA = from_arrow(
    pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64(), nullable=False)]), ["k"]
)


def test_timestamp_zero_is_distinct_from_latest():
    assert scan_spec(SCHEMA, None, None, 0, None, False, "snapshot", None).at == 1
    assert changes_spec(SCHEMA, 0, 0, True, None, None).at == 1
    assert scan_spec(SCHEMA, None, None, None, None, False, "snapshot", None).at == 0


def test_change_feed_columns_except_keys_are_nullable():
    feed = unconnected_table(SCHEMA).changes(since=0).schema
    assert {f.name: f.nullable for f in feed} == {
        "k": False, "v": True, "_op": False, "_timestamp": False,
    }  # fmt: skip
    assert not unconnected_table(SCHEMA).scan().schema.field("v").nullable


class Masters:
    """Answers definitions, and counts no tablet server."""

    def __init__(self) -> None:
        self.operations: list[pb.OperationId] = []

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        if method is methods.DROP_TABLE:
            self.operations.append(request.operation)
            return pb.DropTableResponse()
        assert method is methods.LIST_SERVERS
        return pb.ListServersResponse()

    def stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("no streams here")

    def request_stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("unexpected call")


def test_processes_with_equal_client_id_issue_separate_ddl_requests():
    async def drop(masters: Masters) -> None:
        env = system_env(masters)
        core = ClientCore(env, ["m:1"], ClientOptions(client_id=b"i" * 16, keep_results=True))
        await core.ddl.drop_table("t")
        await env.tasks.close()

    masters = Masters()
    for _ in range(2):
        asyncio.run(drop(masters))
    first, second = masters.operations
    assert first.client != second.client


def test_snapshot_time_without_live_tablet_server_is_an_error():
    async def scenario() -> int:
        env = system_env(Masters())
        try:
            return await ClientCore(env, ["m:1"], ClientOptions(timeout_ms=50)).now()
        finally:
            await env.tasks.close()

    with pytest.raises(Unavailable, match="no live tablet servers"):
        asyncio.run(scenario())


def test_stream_removed_by_grpc_is_a_connection_error():
    removed = grpc.aio.AioRpcError(
        grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Stream removed"
    )
    assert isinstance(status.from_rpc_error(removed, "h:1", "a.B/C"), Unavailable)


@pytest.mark.parametrize("columns", [None, ("v",)])
def test_described_read_has_the_columns_of_its_description_after_names_are_exchanged(columns):
    table = opened()
    spec = ReadSpec(columns=columns, schema=table.schema)
    before = make_token(table, table.tablets[0], spec, 5)
    renamed = [RenameColumn("k", "t"), RenameColumn("v", "k"), RenameColumn("t", "v")]
    table.schema = alter(table.schema, renamed)
    assert make_token(table, table.tablets[0], spec, 5) == before
