"""Facts of `nyala doctor`, and survivors, from servers that refuse, are silent, or change meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Forbidden, NotFound, Unavailable
from nyala.env.clock import SystemClock
from nyala.operate import unsafe_config
from nyala.operate.doctor.collect import collect
from nyala.operate.doctor.facts import Declared
from nyala.operate.doctor.plan import make_plan
from nyala.operate.survivors import ServerEndpoint, of_tablets
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

pytestmark = pytest.mark.row("W9")

U = {address: address[-1] * 32 for address in ("s:1", "s:2", "s:3", "s:4", "m:0")}
T1, T2 = "a" * 32, "b" * 32


def consensus(members):
    """A configuration; of a member with a minus sign no vote."""
    return pb.ConsensusState(
        config_term=1,
        config_index=1,
        members=[
            pb.Member(
                uuid=U[m.strip("-")], address=m.strip("-"), voter="-" not in m, electable=True
            )
            for m in members
        ],
    )


def status(tablet, members, last):
    config = consensus(members)
    return pb.TabletStatus(
        report=pb.TabletReport(tablet_id=tablet, state="RUNNING", role="FOLLOWER", consensus=config),
        table_name="t", last_term=1, last_index=last, active=config,
    )  # fmt: skip


class Cluster:
    """Servers as an rpc, and a leader master as a client: `tablets` by address; `errors` by address."""

    env: Any

    def __init__(self, tablets):
        self.tablets, self.errors = tablets, {}
        self.tables_now = [pb.TableSummary(id="1", name="t", replicas=3)]
        self.env = SimpleNamespace(rpc=self)
        self.masters = SimpleNamespace(call=self.of_leader)
        self.dropped, self.created, self.problems = set(), {}, {}

    async def servers(self):
        found = [
            pb.ServerEntry(uuid=U[a], role="tserver", address=a, alive=True) for a in self.tablets
        ]
        master = pb.ServerEntry(uuid=U["m:0"], role="master", address="m:0", leader=True)
        return pb.ListServersResponse(servers=[*found, master])

    async def tables(self, *, all_kinds):
        assert all_kinds
        return self.tables_now

    async def of_leader(self, method, request, *, timeout_ms):
        assert timeout_ms
        assert method is methods.TABLET_LOCATIONS, method
        if request.table_id in self.dropped:
            raise NotFound("no table")
        self.tablets |= self.created
        replicas = [
            pb.ReplicaLocation(uuid=U[a], address=a, voter=True) for a in ("s:1", "s:2", "s:3")
        ]
        return pb.TabletLocationsResponse(tablets=[pb.TabletLocation(id=T1, replicas=replicas)])

    async def call(self, address, method, request, *, timeout_ms):
        assert timeout_ms
        if method is methods.SERVER_INFO:
            return pb.ServerInfoResponse(uuid=U[address], role="tserver", cluster_id="c")
        if method is methods.MASTER_STATUS:
            return pb.MasterStatusResponse(uuid=U[address], leader=True)
        assert method is methods.LIST_TABLETS, method
        if address in self.errors:
            raise self.errors[address]
        found = self.tablets.get(address, {})
        if not set(request.tablet_ids) <= set(found):
            raise NotFound("a named replica is not here")
        wanted = request.tablet_ids or found
        problems = self.problems.get(address, ())
        return pb.ListTabletsResponse(tablets=[found[t] for t in wanted], problems=problems)


def healthy():
    one = {T1: status(T1, ("s:1", "s:2", "s:3"), 7)}
    return Cluster({a: dict(one) for a in ("s:1", "s:2", "s:3")})


def plan_of(cluster):
    return make_plan(asyncio.run(collect(cluster)), Declared())


def test_server_that_has_one_of_several_named_tablets_shows_it():
    cluster = healthy()
    places = [ServerEndpoint(U[a], a) for a in cluster.tablets]
    found = asyncio.run(of_tablets(cluster.env, places, [T1, T2]))
    assert {t: len(some) for t, some in found.items()} == {T1: 3}


def test_healthy_cluster_has_no_step():
    assert plan_of(healthy()) == []


def test_table_that_is_dropped_meanwhile_is_left_out():
    cluster = healthy()
    cluster.tables_now += [pb.TableSummary(id="2", name="dropped", replicas=3)]
    cluster.dropped = {"2"}
    assert plan_of(cluster) == []


def test_table_that_is_created_meanwhile_has_its_replicas():
    cluster = healthy()
    cluster.created, cluster.tablets = cluster.tablets, {a: {} for a in cluster.tablets}
    assert plan_of(cluster) == []


def test_server_that_refuses_its_list_runs_and_has_the_reason_in_the_plan():
    cluster = healthy()
    cluster.errors = {a: Forbidden("the role reader is needed") for a in ("s:2", "s:3")}
    steps = {s.name: s for s in plan_of(cluster)}
    assert "the role reader is needed" in steps[f"wait-{U['s:2']}"].finding
    assert steps[f"recover-{T1}"].running == ("s:2", "s:3")
    assert not steps[f"recover-{T1}"].ready


def test_catalog_of_a_master_that_refuses_to_show_it_is_not_missing():
    cluster = healthy()
    cluster.errors = {"m:0": Unavailable("it is opening its catalog")}
    (master,) = asyncio.run(collect(cluster)).masters
    assert (master.answers, master.catalog, master.problem) == (
        True, None, "it is opening its catalog",
    )  # fmt: skip


def test_problem_that_a_server_reports_of_itself_is_a_step_for_the_operator():
    """A full disk of a tablet server, in its list and as the error of a running replica; one of a master."""
    cluster = healthy()
    full = "the log cannot grow, and writes are refused here: No space left on device; free space on its disk"
    clock = "clock ceiling cannot be saved"
    cluster.problems = {"s:2": [full], "m:0": [full]}
    cluster.tablets["s:2"] = {T1: status(T1, ("s:1", "s:2", "s:3"), 7)}
    cluster.tablets["s:2"][T1].report.error = clock
    steps = {s.name: s for s in plan_of(cluster)}
    assert list(steps) == [f"mend-{U['m:0']}", f"mend-{U['s:2']}"]
    assert steps[f"mend-{U['m:0']}"].finding == f"master m:0 reports: {full}"
    found = steps[f"mend-{U['s:2']}"].finding
    assert found == f"tablet server {U['s:2']} at s:2 reports: {clock}; and {full}"
    assert not any(s.ready for s in steps.values())


def test_masters_of_which_none_answers_are_those_that_were_named():
    """The plan says that there may be more masters: those that were not named."""

    async def none():
        raise Unavailable("no leader master")

    async def silent(address, *_, **__):
        raise Unavailable(f"{address} is down")

    cluster: Any = healthy()
    cluster.servers, cluster.call = none, silent
    cluster.masters.known, cluster.env.clock = ["m:1", "m:2"], SystemClock()
    steps = plan_of(cluster)
    assert [s.name for s in steps] == ["start-m:1", "start-m:2"]
    assert all("if the cluster has more masters, name them, too" in s.finding for s in steps)


def test_longer_log_of_a_member_that_may_not_lead_does_not_prevent_a_recovery():
    members = ("s:1", "s:2", "s:3", "-s:4")
    cluster = Cluster({"s:1": {T1: status(T1, members, 5)}, "s:4": {T1: status(T1, members, 9)}})
    cluster.errors = {a: Unavailable("down") for a in ("s:2", "s:3")}
    place = ServerEndpoint(U["s:1"], "s:1")
    todo = asyncio.run(unsafe_config.plan(cluster.env, T1, place, [U["s:1"], U["s:4"]]))
    assert (todo.risks, todo.known) == ((), 9)
