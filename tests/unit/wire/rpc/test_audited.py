"""Audited calls on a real port: lines before and after, refusals, a log that cannot be written."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest
import uvloop

from nyala.admin.auditing import Auditor
from nyala.common.errors import AlreadyPresent, Forbidden, Throttled, Unauthenticated, Unavailable
from nyala.env.env import system_env
from nyala.security import policy
from nyala.security.audit import AuditLog, earlier_files, verify, verify_files
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import access_pb2, flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server import GrpcServer
from nyala.wire.tls import refusals as refusals_module
from nyala.wire.tls.refusals import (
    CALLS_OF_CALLER,
    LINES,
    LINES_OF_CALLER,
    OTHERS,
    WINDOW_S,
    Refusals,
)
from tests.unit.security.certificates import server, user
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import eventually


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
    assert [x["who"] for x in found] == ["owner owner"] * 4 + ["reader reader"]
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


class Lines:
    """An audit log in memory, and a clock."""

    def __init__(self):
        self.found, self.now_s = [], 100.0

    async def note(self, event, **fields):
        self.found.append({"event": event, **fields})

    def of(self, event, who):
        return [x for x in self.found if x["event"] == event and x["who"] == who]


REFUSED = Forbidden("ann needs a grant")


def test_refusals_of_a_caller_have_few_lines_and_then_a_count():
    """So that nobody fills the disk of the log."""

    async def scenario():
        log = Lines()
        refusals = Refusals(log, lambda: log.now_s)
        for _ in range(500):
            await refusals.note("ann", "a/Get", "peer", REFUSED)
        await refusals.note("bob", "a/Get", "peer", REFUSED)
        assert (len(log.of("refused", "ann")), len(log.of("refused", "bob"))) == (
            LINES_OF_CALLER,
            1,
        )
        assert not log.of("suppressed", "ann")
        log.now_s += WINDOW_S
        await refusals.note("bob", "a/Get", "peer", REFUSED)
        await eventually(lambda: bool(log.of("suppressed", "ann")), "what was suppressed is told")
        (told,) = log.of("suppressed", "ann")
        assert told["refusals"] == 500 - LINES_OF_CALLER
        await refusals.note("ann", "a/Get", "peer", REFUSED)
        assert len(log.of("refused", "ann")) == LINES_OF_CALLER + 1

    uvloop.run(scenario())


def test_many_callers_have_no_more_lines_than_all_may_have():
    async def scenario():
        log = Lines()
        refusals = Refusals(log, lambda: log.now_s)
        for number in range(3_000):
            await refusals.note(f"user{number}", "a/Get", "peer", REFUSED)
        assert len(log.found) == LINES
        log.now_s += WINDOW_S
        await refusals.note("ann", "a/Get", "peer", REFUSED)
        await eventually(lambda: bool(log.of("suppressed", OTHERS)), "the others are told together")
        told = [x["refusals"] for x in log.found if x["event"] == "suppressed"]
        assert sum(told) == 3_000 - LINES
        assert len(told) <= LINES + 1

    uvloop.run(scenario())


def test_audited_calls_that_are_always_refused_end_for_a_minute():
    async def scenario():
        log = Lines()
        refusals = Refusals(log, lambda: log.now_s)
        for _ in range(CALLS_OF_CALLER):
            refusals.require_room("ann")
            refusals.count("ann")
        with pytest.raises(Throttled, match="calls of ann were refused"):
            refusals.require_room("ann")
        refusals.require_room("bob")
        log.now_s += WINDOW_S
        refusals.require_room("ann")
        await eventually(lambda: bool(log.of("suppressed", "ann")), "the count is told")

    uvloop.run(scenario())


def test_refusals_on_the_stream_port_and_of_single_requests_have_lines(tmp_path):
    """A user without grants reads, by a look-up and by a scan."""

    async def scenario():
        (tmp_path / "instance").touch()
        known = server()
        known.grants.replace(0, ())
        known.grants.fresh = True
        rpc = GrpcRpc(credentials=user(AccessRole.USER))
        env = system_env(rpc)
        audit = Auditor(env, str(tmp_path))
        store = BatchStore()
        grpc_server = GrpcServer(
            store.handlers(),
            "127.0.0.1:0",
            credentials=known,
            audit=audit,
            find=lambda _how, _name: None,
        )
        address = await grpc_server.start()
        try:
            wanted = pb.DescribeTableRequest(name="staff")
            with pytest.raises(Forbidden):
                await rpc.call(address, methods.DESCRIBE_TABLE, wanted, timeout_ms=10_000)
            ticket = flight_pb2.Ticket(ticket=pb.ScanToken(tablet_id="t").SerializeToString())
            with pytest.raises(Forbidden):
                async for _ in rpc.stream(address, methods.DO_GET, ticket):
                    pass
            path = tmp_path / "audit" / "audit.log"
            await eventually(
                lambda: path.exists() and len(lines(tmp_path)) == 2, "both have a line"
            )
        finally:
            await rpc.close()
            await grpc_server.stop(0)
            await audit.close()
            await env.tasks.close()

    uvloop.run(scenario())
    found = lines(tmp_path)
    assert [(x["method"], x["who"], x["code"]) for x in found] == [
        (methods.DESCRIBE_TABLE.path, "user user", "FORBIDDEN"),
        (methods.DO_GET.path, "user user", "FORBIDDEN"),
    ]


def test_audited_methods_exist_and_need_a_role_above_writer_or_check_the_caller_themselves():
    assert set(policy.LEAST_ROLES) >= policy.AUDITED
    lower = {p for p in policy.AUDITED if policy.LEAST_ROLES[p] <= AccessRole.WRITER}
    assert lower == {methods.GRANT.path, methods.REVOKE_GRANT.path, methods.REISSUE.path}


class Logins:
    """Answers to logins: a password is right if it is the name of its user."""

    async def log_in(self, request):
        if request.password != request.name:
            raise Unauthenticated("the password is wrong")
        return access_pb2.LoginResponse(name=request.name)


def test_user_who_logged_in_from_a_host_is_not_kept_out_by_refused_logins_of_others_there(tmp_path):
    async def scenario():
        (tmp_path / "instance").touch()
        rpc = GrpcRpc(credentials=server())
        env = system_env(rpc)
        audit = Auditor(env, str(tmp_path))
        handlers = {methods.LOGIN: Logins().log_in}
        grpc_server = GrpcServer(handlers, "127.0.0.1:0", credentials=server(), audit=audit)
        address = await grpc_server.start()

        async def log_in(name, password, host="10.0.0.1"):
            wanted = access_pb2.LoginRequest(name=name, password=password, peer_host=host)
            await rpc.call(address, methods.LOGIN, wanted, timeout_ms=10_000)

        async def guesses(name, at_once=20):
            wrong = (log_in(name, "a guess") for _ in range(at_once))
            return await asyncio.gather(*wrong, return_exceptions=True)

        try:
            await log_in("ann", "ann")
            for number in range(CALLS_OF_CALLER // 20):
                assert {type(e) for e in await guesses(f"user{number}")} == {Unauthenticated}
            assert {type(e) for e in await guesses("user")} == {Throttled}
            await log_in("ann", "ann")
            await log_in("bob", "bob", "10.0.0.2")
            with pytest.raises(Throttled):
                await log_in("bob", "bob")
            for _ in range(CALLS_OF_CALLER // 20):
                await guesses("ann")
            with pytest.raises(Throttled):
                await log_in("ann", "ann")
        finally:
            await rpc.close()
            await grpc_server.stop(0)
            await audit.close()
            await env.tasks.close()

    uvloop.run(scenario())
    results = [x["result"] for x in lines(tmp_path) if x["event"] == "result"]
    assert len(results) == 3 + 2 * CALLS_OF_CALLER
    assert results.count("OK") == 3


def test_memory_of_users_who_logged_in_is_bounded(monkeypatch):
    monkeypatch.setattr(refusals_module, "KEPT", 10)
    refusals = Refusals(Lines())
    for number in range(100):
        refusals.logged_in("10.0.0.1 (Login)", f"user{number}")
    host = "10.0.0.1 (Login)"
    known = [n for n in range(100) if refusals.counted_for(host, f"user{n}") != host]
    assert known == list(range(90, 100))


@pytest.mark.full
def test_flood_of_refusals_leaves_few_lines_in_files_of_one_chain_also_while_the_disk_is_full(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(AuditLog.__init__, "__defaults__", (20_000,))
    (tmp_path / "instance").touch()

    async def scenario():
        env, now, write = system_env(GrpcRpc()), Lines(), os.write
        audit = Auditor(env, str(tmp_path))
        refusals = Refusals(audit, lambda: now.now_s)
        for window in range(4):
            full = window == 2
            monkeypatch.setattr(os, "write", (lambda f, r: write(f, r[:10])) if full else write)
            for number in range(25_000):
                await refusals.note(f"user{number % 5_000}", "a/Get", "peer", REFUSED)
            now.now_s += WINDOW_S
        monkeypatch.setattr(os, "write", write)
        await refusals.note("last", "a/Get", "peer", REFUSED)
        held = vars(refusals)
        await eventually(lambda: not held["_tasks"], "the counts are told")
        assert max(len(held[name]) for name in ("_lines", "_calls", "_suppressed")) <= LINES
        await audit.close()
        await env.tasks.close()

    uvloop.run(scenario())
    files = [*map(str, earlier_files(str(tmp_path / "audit"))), str(tmp_path / "audit/audit.log")]
    assert len(files) > 2
    verify_files(files)
    found = [json.loads(x) for f in files for x in Path(f).read_text().splitlines()]
    assert sum(x["event"] == "refused" for x in found) == 3 * LINES + 1
    counted = sum(x["refusals"] for x in found if x["event"] == "suppressed")
    assert counted == 3 * (25_000 - LINES), "but for the counts that were due while it was full"
