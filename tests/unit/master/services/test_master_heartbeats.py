"""Heartbeats at masters: liveness everywhere, content at the leader, acknowledged when taken in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.group.status import ResponseHeader
from nyala.master.services.heartbeats import HeartbeatService
from nyala.master.table_quotas import TableQuotas
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.master.scenarios.master_runner import after, play
from tests.unit.master.support.ddl_levels import ids
from tests.unit.master.support.ddl_operations import with_table
from tests.unit.master.support.master_helpers import server_info

READY = ["lead m1", "pass 100", "servers a b c", "pass 1500", "create t", "pass 100"]
FOLLOWER, TAKEN = "follower, acknowledged", "leader, acknowledged"


@pytest.mark.row("S0.22", "S0.23")
def test_follower_masters_record_liveness_only():
    lines = play([*READY, "report a full t.0=a/1", "lead m2", "pass 100", "locate t", "list"])
    assert f"m1 answers a: {TAKEN}" in lines
    assert f"m2 answers a: {FOLLOWER}" in lines
    assert after(lines, "locate t") == ["-> t.0 RUNNING: a:1* b:1 c:1"], "addresses known at once"
    alive = [line for line in after(lines, "list") if line.startswith("-> tserver")]
    assert alive == [f"-> tserver {s} {s}:1 alive, 1 replicas" for s in "abc"], (
        "liveness is known at once"
    )
    again = play([*READY, "lead m2", "pass 100", "report a full t.0=a/1"])
    assert again[-4:] == [
        f"m1 answers a: {FOLLOWER}",
        "writes tablet t.0 RUNNING on a b c, led by a in term 1, seen on a",
        f"m2 answers a: {TAKEN}",
        f"m3 answers a: {FOLLOWER}",
    ], "m1 no longer leads: only m2 has the content"
    at_once = play([*READY, "lead m2", "report a full t.0=a/1"])
    assert f"m1 answers a: {FOLLOWER}" in at_once, "m1 answers as a follower at once"


@pytest.mark.row("S0.24", "S0.25")
def test_leader_requests_full_report_until_received_in_its_term():
    lines = play([*READY, "lead m2", "pass 100", "report a", "report a full t.0=a/1", "report a"])
    wants = [line for line in lines if line.startswith("m2 answers a: leader")]
    assert wants == [
        "m2 answers a: leader, wants a full report",
        f"m2 answers a: {TAKEN}",
        f"m2 answers a: {TAKEN}",
    ]
    restarted = play([*READY, "restart a", "report a"])
    assert f"m1 answers a: {TAKEN}" in after(restarted, "restart a"), "a restart reports in full"


@pytest.mark.row("S0.24")
def test_leader_elected_again_requests_full_reports_again():
    """Reports received in an earlier term may be outdated: KUDU-1353."""
    between = ["lead m2", "pass 100", "lead m1", "pass 100", "report a", "report a full t.0=b/3"]
    lines = play([*READY, "report a full t.0=a/1", *between, "locate t"])
    assert "m1 answers a: leader, wants a full report" in after(lines, "report a")
    assert after(lines, "locate t") == ["-> t.0 RUNNING: b:1* a:1 c:1"]


@pytest.mark.row("S0.36")
def test_unreplicated_report_is_not_acknowledged_and_is_processed_on_resend():
    lines = play([*READY, "fail refused", "report a t.0=a/1", "describe t", "report a t.0=a/1"])
    first = lines.index("> report a t.0=a/1")
    assert lines[first + 1 : first + 3] == ["a write is refused", "m1 answers a: leader"]
    assert after(lines, "describe t") == ["-> RUNNING, not ready, 0 of 1 run"]
    assert f"m1 answers a: {TAKEN}" in after(lines, "report a t.0=a/1")


@pytest.mark.row("S0.26")
def test_incremental_report_changes_only_listed_tablets():
    two = ["create u", "pass 100", "report a full t.0=a/1 u.0=a/1", "report a t.0=b/2"]
    lines = play([*READY, *two, "locate u", "locate t"])
    assert after(lines, "locate u") == ["-> u.0 RUNNING: a:1* b:1 c:1"]
    assert after(lines, "locate t") == ["-> t.0 RUNNING: b:1* a:1 c:1"]
    assert not [
        line for line in lines if "DeleteTablet" in line or "CreateTablet u.0 to a" in line
    ][1:]


def test_overlapping_or_late_reports_are_processed_once():
    """A delayed duplicate of report 1 arrives after report 2."""
    lines = play([*READY, "report a t.0=a/1", "report a t.0=b/2"])
    assert "writes tablet t.0 RUNNING on a b c, led by b in term 2, seen on a" in lines

    async def main(loop):
        env = Env(SimClock(loop), seeded(1), None, SimTasks(loop, seeded(1)), None)  # type: ignore[arg-type]
        servers = TServers(1000)
        service = HeartbeatService(
            env, servers, lambda: None, lambda: ResponseHeader("m", "", "", 1, ()), Options()
        )
        request = pb.HeartbeatRequest(server=server_info("a"), report_sequence=7)
        answer = await service.heartbeat(request)
        return answer, servers.alive(env.clock.monotonic_us())

    answer, alive = run(main)
    assert (answer.leader, answer.acknowledged_sequence, answer.master_uuid) == (False, 7, "m")
    assert [s.uuid for s in alive] == ["a"]


class Leading:
    """A master that leads in term 1; an operation ends when the gate is opened."""

    def __init__(self) -> None:
        ignored = SimpleNamespace(reported=lambda *_, **__: None, trigger=lambda: None)
        memory = SimpleNamespace(term=1, dropped=None)
        self.catalog = with_table(led=False)
        self.term = SimpleNamespace(
            memory=memory,
            catalog=self.catalog,
            dispatcher=ignored,
            background=ignored,
            quotas=TableQuotas(self.catalog),
        )
        self.operations = 0
        self.gate = asyncio.Event()

    def current(self) -> Any:
        return self.term

    async def run(self, _wanted: Any, _term: Any) -> None:
        self.operations += 1
        await self.gate.wait()


def leading_service(loop: Any) -> tuple[Leading, HeartbeatService, TServers]:
    leading: Any = Leading()
    env = Env(SimClock(loop), seeded(1), None, SimTasks(loop, seeded(1)), None)  # type: ignore[arg-type]
    servers = TServers(1000)
    header = ResponseHeader("m", "", "", 1, ())
    return (
        leading,
        HeartbeatService(env, servers, lambda: leading, lambda: header, Options()),
        servers,
    )


def full_report(sequence: int, *tablets: str) -> pb.HeartbeatRequest:
    reports = [pb.TabletReport(tablet_id=t, state="RUNNING") for t in tablets]
    return pb.HeartbeatRequest(
        server=server_info("a"), report_sequence=sequence, full=True, tablets=reports
    )


def test_report_that_a_later_one_overtook_is_ignored():
    async def main(loop):
        _, service, servers = leading_service(loop)
        await service.heartbeat(full_report(2, "x"))
        answer = await service.heartbeat(full_report(1, "y"))
        return answer, servers.all()[0]

    answer, server = run(main)
    assert answer.acknowledged_sequence == 2
    assert list(server.replicas) == ["x"]


def test_reports_of_one_server_are_recorded_one_at_a_time():
    async def main(loop):
        leading, service, _ = leading_service(loop)
        tablet = ids(leading.catalog)[0]
        first = asyncio.ensure_future(service.heartbeat(full_report(1, tablet)))
        while not leading.operations:
            await loop.delay(1)
        second = asyncio.ensure_future(service.heartbeat(full_report(2, tablet)))
        await loop.delay(1_000)
        assert leading.operations == 1
        assert second.done(), "it is not acknowledged, and comes again"
        leading.gate.set()
        return (await second).acknowledged_sequence, (await first).acknowledged_sequence

    assert run(main) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "master"}, "names role .master."),
        ({"uuid": ""}, "and uuid .."),
        ({"address": "nowhere"}, "'nowhere' is not an address"),
        ({"peer_address": "x:y"}, "'x:y' is not an address"),
        ({"cluster_id": "other"}, "belongs to cluster other, and this master to ours"),
    ],
)
def test_heartbeat_from_foreign_server_is_refused(change, message):
    async def main(loop):
        env = Env(SimClock(loop), seeded(1), None, SimTasks(loop, seeded(1)), None)  # type: ignore[arg-type]
        servers = TServers(1000)
        header = ResponseHeader("m", "ours", "i", 1, ())
        service = HeartbeatService(env, servers, lambda: None, lambda: header, Options())
        server = server_info("a")
        for name, value in change.items():
            setattr(server, name, value)
        with pytest.raises(InvalidArgument, match=message):
            await service.heartbeat(pb.HeartbeatRequest(server=server))
        return servers.all()

    assert run(main) == []
