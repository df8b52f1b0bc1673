"""Audited calls on a real port: lines before and after, refusals, a log that cannot be written."""

import contextlib
import json
import os

import pytest
import uvloop

from nyala.admin.auditing import Auditor
from nyala.common.errors import AlreadyPresent, Forbidden, Unavailable
from nyala.env.env import system_env
from nyala.security import policy
from nyala.security.audit import verify
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server import GrpcServer
from tests.unit.security.certificates import server, user


class Tables:
    """Answers to two methods, one of which is audited."""

    def __init__(self):
        self.dropped = []

    async def drop(self, request):
        if request.name in self.dropped:
            raise AlreadyPresent("it was dropped")
        self.dropped.append(request.name)
        return pb.DropTableResponse()

    async def describe(self, _request):
        return pb.DescribeTableResponse()


@contextlib.asynccontextmanager
async def serving(folder):
    (folder / "instance").touch()
    rpcs = {role: GrpcRpc(credentials=user(role)) for role in (AccessRole.READER, AccessRole.OWNER)}
    env, tables = system_env(rpcs[AccessRole.OWNER]), Tables()
    audit = Auditor(env, str(folder))
    handlers = {methods.DROP_TABLE: tables.drop, methods.DESCRIBE_TABLE: tables.describe}
    grpc_server = GrpcServer(handlers, "127.0.0.1:0", credentials=server(), audit=audit)
    address = await grpc_server.start()

    async def call(role, method, request):
        return await rpcs[role].call(address, method, request, timeout_ms=10_000)

    try:
        yield call, tables
    finally:
        for rpc in rpcs.values():
            await rpc.close()
        await grpc_server.stop(0)
        await audit.close()
        await env.tasks.close()


def lines(folder):
    path = folder / "audit" / "audit.log"
    verify(str(path))
    return [json.loads(line) for line in path.read_text().splitlines()]


def drop(call, role=AccessRole.OWNER, name="t"):
    return call(role, methods.DROP_TABLE, pb.DropTableRequest(name=name))


def test_audited_calls_and_refusals_have_their_lines_and_reads_have_none(tmp_path):
    async def scenario():
        async with serving(tmp_path) as (call, _):
            await drop(call)
            with pytest.raises(AlreadyPresent):
                await drop(call)
            with pytest.raises(Forbidden):
                await drop(call, AccessRole.READER)
            await call(AccessRole.READER, methods.DESCRIBE_TABLE, pb.DescribeTableRequest())

    uvloop.run(scenario())
    found = lines(tmp_path)
    assert [(x["event"], x.get("result")) for x in found] == [
        ("call", None), ("result", "OK"), ("call", None), ("result", "ALREADY_PRESENT"), ("refused", None),
    ]  # fmt: skip
    assert {x["who"] for x in found if "who" in x} == {"owner owner"}
    assert found[0]["about"] == {"name": "t"}
    assert found[-1]["code"] == "FORBIDDEN"
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700


def test_full_disk_refuses_what_must_be_audited_and_nothing_else(tmp_path, monkeypatch):
    async def scenario():
        async with serving(tmp_path) as (call, tables):
            await drop(call)
            write = os.write
            monkeypatch.setattr(os, "write", lambda file, raw: write(file, raw[:10]))
            with pytest.raises(Unavailable, match="audit log of this server cannot be written"):
                await drop(call, name="u")
            assert tables.dropped == ["t"], "it was not carried out"
            await call(AccessRole.READER, methods.DESCRIBE_TABLE, pb.DescribeTableRequest())
            monkeypatch.setattr(os, "write", write)
            await drop(call, name="u")

    uvloop.run(scenario())
    assert [x["about"]["name"] for x in lines(tmp_path)] == ["t", "t", "u", "u"]


def test_audited_methods_exist_and_need_a_role_above_writer_or_check_the_caller_themselves():
    assert set(policy.LEAST_ROLES) >= policy.AUDITED
    lower = {p for p in policy.AUDITED if policy.LEAST_ROLES[p] <= AccessRole.WRITER}
    assert lower == {methods.GRANT.path, methods.REVOKE_GRANT.path, methods.REISSUE.path}
