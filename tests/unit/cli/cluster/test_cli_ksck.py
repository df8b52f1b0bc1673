"""Findings of ksck from the replicas of a tablet: leaders, states, logs that lag or diverge."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from nyala.cli.serve import ListenAddresses, server_facts
from nyala.common.errors import NyalaError, Unavailable
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.clock import SystemClock
from nyala.operate.ksck.check import quota_rows, version_problems
from nyala.operate.ksck.health import ClusterHealth
from nyala.operate.ksck.servers import check_masters, check_tservers
from nyala.operate.ksck.tablets import BEHIND, replica_rows, tablet_problems
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.rpc_metrics import RpcMetrics
from tests.unit.machines.support.kinds import KINDS

TABLET = pb.TabletLocation(
    id="x",
    replicas=[pb.ReplicaLocation(uuid=u, address=f"{u}:1", voter=True) for u in "abc"],
)


def statuses(**changes):
    """The replicas on a (leader), b and c; `b__applied_index=7` changes one."""
    found = {}
    for uuid in "abc":
        status = pb.TabletStatus(last_index=90, commit_index=90, applied_index=90, durable_index=90)
        status.report.state = "RUNNING"
        status.report.role = "LEADER" if uuid == "a" else "FOLLOWER"
        status.report.consensus.term = 3
        found[uuid] = {"x": status}
    for name, value in changes.items():
        uuid, field = name.split("__")
        on = found[uuid]["x"]
        setattr(on.report if field in ("state", "role", "error") else on, field, value)
    return found


def summary(kind):
    return pb.TableSummary(name="t", replicas=3, kind=kind.number)


def problems(kind, found):
    return tablet_problems(TABLET, found, summary(kind))


@KINDS
def test_healthy_tablet_has_no_problems(kind):
    assert problems(kind, statuses()) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"b__state": "CONFIGURING"}, "b:1 is CONFIGURING"),
        ({"c__state": "BOOTSTRAPPING", "c__role": "NON_PARTICIPANT"}, "c:1 is BOOTSTRAPPING"),
        ({"c__state": "FAILED", "c__error": "bad disk"}, "c:1 is FAILED: bad disk"),
        ({"a__role": "FOLLOWER"}, "0 replicas lead"),
        ({"b__role": "LEADER"}, "2 replicas lead"),
        ({"a__commit_index": BEHIND + 90, "a__last_index": BEHIND + 90}, "10000 entries behind"),
        ({"b__commit_index": 91}, "not of one history"),
    ],
)
@KINDS
def test_ksck_names_each_problem(kind, changes, word):
    found = problems(kind, statuses(**changes))
    assert any(word in problem for problem in found), found


@KINDS
def test_follower_that_needs_copy_is_reported(kind):
    found = statuses()
    found["a"]["x"].peers.add(uuid="b", match=90)
    found["a"]["x"].peers.add(uuid="c", needs_copy=True)
    (problem,) = problems(kind, found)
    assert "c:1 needs a copy" in problem


@KINDS
def test_follower_without_progress_is_reported(kind):
    found = statuses()
    found["a"]["x"].peers.add(uuid="b", match=90, stuck_ms=9_999)
    found["a"]["x"].peers.add(uuid="c", match=17, stuck_ms=12_345)
    (problem,) = problems(kind, found)
    assert (
        "c:1 has made no progress for 12 s: its leader knows that its log has entries up to 17"
        in problem
    )


@KINDS
def test_states_and_roles_are_listed(kind):
    health = ClusterHealth()
    health.replicas = replica_rows(TABLET, statuses(c__applied_index=80), summary(kind))
    assert health.states() == [("RUNNING", "FOLLOWER", 2), ("RUNNING", "LEADER", 1)]
    third = health.as_dict()["replicas"][2]
    assert (third["address"], third["state"], third["role"]) == ("c:1", "RUNNING", "FOLLOWER")
    assert (third["applied"], third["behind"], third["term"]) == (80, 10, 3)


def test_master_with_failed_catalog_is_shown_as_failed():
    class Masters:
        async def call(self, address: str, method: object, *_: object, **__: object) -> object:
            if method is methods.LIST_TABLETS:
                found_problems = (
                    ["this machine's wall clock is 3.0 years behind"] if address == "c:1" else []
                )
                return pb.ListTabletsResponse(problems=found_problems)
            failed = "" if address != "b:1" else "[Errno 5] Input/output error"
            server = pb.ServerInfoResponse(version="0.2.0")
            return pb.MasterStatusResponse(
                uuid=address, leader=address == "a:1", error=failed, server=server
            )

    health, core = ClusterHealth(), SimpleNamespace(env=SimpleNamespace(rpc=Masters()))
    entries = [pb.ServerEntry(uuid=u, address=f"{u}:1", role="master") for u in "abc"]
    known: Any = core
    asyncio.run(check_masters(known, entries, health))
    assert [state for *_, state in health.masters] == ["LEADER", "FAILED", "FOLLOWER"]
    assert {version for _, _, version, _ in health.masters} == {"0.2.0"}
    assert health.problems == [
        "master b:1 is FAILED: [Errno 5] Input/output error",
        "master c:1: this machine's wall clock is 3.0 years behind",
    ]


class Servers:
    """Tablet servers: the server list of each by its address, and equal running replicas on all."""

    def __init__(
        self,
        lists: Callable[[str], pb.ListTabletsResponse],
        copies: Sequence[pb.CopyProgress] | NyalaError = (),
    ) -> None:
        self._lists = lists
        self._copies = copies

    async def call(self, address: str, method: object, *_: object, **__: object) -> Any:
        if method is methods.LIST_TABLETS:
            return self._lists(address)
        assert method is methods.COPY_STATUS
        if isinstance(self._copies, NyalaError):
            raise self._copies
        return pb.CopyStatusResponse(copies=self._copies)


def listing(problems: Sequence[str] = (), **reports: dict[str, str]) -> pb.ListTabletsResponse:
    """Return a server's list: its problems, and for each tablet the differences from a running replica."""
    answer = pb.ListTabletsResponse(problems=problems)
    for tablet, report in reports.items():
        listed = answer.tablets.add().report
        listed.tablet_id, listed.state = tablet, "RUNNING"
        for name, value in report.items():
            setattr(listed, name, value)
    return answer


def checked(servers: Servers, uuids: str = "ab") -> tuple[ClusterHealth, Any]:
    """Return the findings of ksck on some tablet servers, and their replicas."""
    health = ClusterHealth()
    core: Any = SimpleNamespace(env=SimpleNamespace(rpc=servers))
    entries = [
        pb.ServerEntry(uuid=u, address=f"{u}:1", role="tserver", version=f"0.{n}.0")
        for n, u in enumerate(uuids, 1)
    ]
    return health, asyncio.run(check_tservers(core, entries, health))


def test_tablet_server_with_wrong_clock_is_unhealthy():
    refused = "all that b at b:9 sends is refused: its hybrid clock is 12.4 years ahead"
    health, _ = checked(Servers(lambda at: listing([refused] if at == "a:1" else [])))
    assert [(t[1], t[4]) for t in health.tservers] == [("a:1", "UNHEALTHY"), ("b:1", "HEALTHY")]
    (problem,) = health.problems
    assert problem.startswith("tablet server a:1: all that b at b:9 sends is refused")


def test_server_whose_stream_port_does_not_answer_is_unhealthy():
    health, _ = checked(Servers(lambda _: listing(), Unavailable("no connection to a:2")), "a")
    assert [(t[1], t[4]) for t in health.tservers] == [("a:1", "UNHEALTHY")]
    (problem,) = health.problems
    assert problem.startswith(
        "tablet server a:1: it answers at its public port, and not at its stream"
    )
    assert "no connection to a:2" in problem


def test_decommissioned_server_that_was_stopped_is_no_problem():
    """It was stopped with no replica left, while it had one, and before it counts as dead."""

    def silent(address: str) -> pb.ListTabletsResponse:
        raise Unavailable(f"{address} is down")

    entries = [
        pb.ServerEntry(uuid="a", address="a:1", decommission=True),
        pb.ServerEntry(uuid="b", address="b:1", decommission=True, replicas=1),
        pb.ServerEntry(uuid="c", address="c:1", decommission=True, alive=True),
    ]
    health, core = ClusterHealth(), SimpleNamespace(env=SimpleNamespace(rpc=Servers(silent)))
    asked: Any = core
    asyncio.run(check_tservers(asked, entries, health))
    states = [state for *_, state in health.tservers]
    assert states == ["DECOMMISSIONED", "UNREACHABLE", "UNREACHABLE"]
    assert [p.split()[2] for p in health.problems] == ["b:1", "c:1"]


def test_servers_of_different_releases_are_named():
    health, _ = checked(Servers(lambda _: listing()), "abc")
    health.masters = [("m", "m:1", "0.3.0", "LEADER"), ("n", "n:1", "", "UNREACHABLE")]
    (problem,) = version_problems([*health.masters, *health.tservers])
    assert "nyala 0.1.0 at a:1; nyala 0.2.0 at b:1; nyala 0.3.0 at c:1, m:1." in problem
    assert "Stop all servers, install the newest release on each machine" in problem
    assert version_problems([*health.masters, health.tservers[2]]) == []


def test_memory_problem_is_reported_once_in_text_and_json():
    strained = (
        "70 MiB of memory are in use (rows 70), more than memory_budget_bytes (64 MiB) allows"
    )
    full = "the log cannot grow, and writes are refused here: No space left on device"
    found = listing([strained, full], x={"error": strained}, y={"error": strained})
    health, _ = checked(Servers(lambda _: found), "a")
    assert health.problems == [f"tablet server a:1: {text}" for text in (strained, full)]
    assert health.as_dict()["problems"] == health.problems
    assert not health.as_dict()["healthy"]


def test_server_with_unsaved_clock_ceiling_is_reported_once():
    clock = "clock ceiling cannot be saved: [Errno 28] No space left on device"

    def lists(address: str) -> pb.ListTabletsResponse:
        report = {"error": clock if address == "b:1" else ""}
        return listing(x=report, y=report, z=report | {"state": "FAILED"})

    health, _ = checked(Servers(lists))
    assert [state for *_, state in health.tservers] == ["HEALTHY", "UNHEALTHY"]
    assert health.problems == [f"tablet server b:1: {clock}"]


def test_server_with_slow_disk_is_reported_once():
    slow = (
        "the log's disk is slow: a round of writes takes 400 ms here and 1 ms at the fastest peer"
    )

    def lists(address: str) -> pb.ListTabletsResponse:
        report = {"warning": slow if address == "b:1" else ""}
        return listing(x=report, y=report)

    health, _ = checked(Servers(lists))
    assert [state for *_, state in health.tservers] == ["HEALTHY", "UNHEALTHY"]
    assert health.problems == [f"tablet server b:1: {slow}"]


@KINDS
def test_copy_in_progress_is_shown_with_progress(kind):
    copies = [
        pb.CopyProgress(
            stage="FILES", bytes_done=10, tablet_id="x", source_address="a:1", bytes_total=20
        ),
        pb.CopyProgress(stage="DONE", tablet_id="y"),
    ]
    _, found = checked(Servers(lambda _: listing(), copies), "c")
    assert list(found["c"]) == ["x"]
    problems = tablet_problems(TABLET, statuses() | found, summary(kind))
    assert "the replica on c:1 is COPYING from a:1: FILES, 10 of 20 bytes" in problems


def test_tables_at_their_quotas_or_near_them_are_listed_and_the_others_not():
    tables = [
        pb.TableSummary(name=name, quota_bytes=quota, bytes=size)
        for name, quota, size in (
            ("over", 1_000, 1_200), ("at", 1_000, 1_000), ("near", 1_000, 900), ("far", 1_000, 899),
            ("none", 0, 0), ("unknown", 1_000, 0),
        )
    ]  # fmt: skip
    health = ClusterHealth(quotas=quota_rows(tables))
    assert health.quotas == [
        ("over", 1_200, 1_000, 120, "takes deletes only"),
        ("at", 1_000, 1_000, 100, "takes deletes only"),
        ("near", 900, 1_000, 90, "near its quota"),
    ]
    shown = health.as_dict()
    assert shown["healthy"], "the cluster does what was asked of it"
    assert shown["quotas"][2] == {
        "table": "near", "bytes": 900, "quota": 1_000, "percent": 90, "state": "near its quota",
    }  # fmt: skip


def test_healthz_names_a_clock_that_cannot_be_saved():
    host = SimpleNamespace(unavailable_reason="", summary=str)
    server: Any = SimpleNamespace(failure=None, host=host, uuid="a", cluster_id="c")
    facts = server_facts(
        "tserver",
        server,
        ListenAddresses("a:1", "a:2", "a:3"),
        Metrics(),
        Options(),
        RpcMetrics(SystemClock(), CollectorRegistry()),
    )
    assert facts.unavailable_reason() is None
    host.unavailable_reason = "clock ceiling cannot be saved: [Errno 5] Input/output error"
    assert facts.unavailable_reason() == host.unavailable_reason
    server.failure = Unavailable("it has no data directory")
    assert facts.unavailable_reason() == "it has no data directory"
