"""The tablet server's heartbeater with three masters: content and time of each report."""

from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.master.catalog.records.rows import tablet_row
from nyala.tserver import heartbeater
from nyala.tserver.heartbeater import Heartbeater, Reporter
from nyala.wire.proto import catalog_pb2 as cat
from tests.sim.world.loop import run
from tests.unit.master.scenarios.master_runner import Scenario
from tests.unit.master.scenarios.scenario_masters import MASTERS
from tests.unit.master.support.master_helpers import report, server_info

ONE, TWO = TabletId("t1"), TabletId("t2")


class Reporting:
    """A tablet server with two replicas that reports to the masters of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.leaders = {ONE: "a", TWO: "a"}
        reporter = Reporter(lambda: server_info("a"), self.tablets, AsyncMock())
        self.masters = [f"{m}:1" for m in MASTERS]
        self.heartbeater = Heartbeater(scenario.env, lambda: self.masters, reporter, 500, 5000)
        self.heartbeater.start()

    def tablets(self, wanted):
        named = self.leaders if wanted is None else wanted
        return [report(t, leader=self.leaders[t], term=ord(self.leaders[t])) for t in named]

    async def pass_ms(self, duration_ms):
        """Let time pass; return the reports received by each master as (full, tablets)."""
        del self.scenario.received[:]
        await self.scenario.env.tasks.sleep_ms(duration_ms)
        return {
            m: [
                (request.full, [t.tablet_id for t in request.tablets])
                for master, request in self.scenario.received
                if master == m
            ]
            for m in MASTERS
        }


def reports_of(work, known=()):
    async def main(loop):
        scenario = Scenario(loop)
        for tablet in known:
            record = cat.TabletRecord(id=tablet, table_id="x", state=cat.TABLET_CREATING)
            scenario.rows["tablet", tablet] = tablet_row(record)
            scenario.names[tablet] = tablet
        scenario.elect("m1")
        await scenario.env.tasks.sleep_ms(100)
        return await work(scenario, Reporting(scenario))

    return run(main)


NOTHING: tuple[bool, list[str]] = (False, [])
BOTH = (True, [ONE, TWO])


@pytest.mark.row("S0.21", "S0.25", "S0.27")
def test_every_master_gets_full_report_at_start_and_nothing_twice():
    async def work(scenario, server):
        return await server.pass_ms(3600)

    received = reports_of(work)
    assert {m: reports[0] for m, reports in received.items()} == dict.fromkeys(MASTERS, BOTH)
    assert {m: reports[1:] for m, reports in received.items()} == {
        "m1": [NOTHING] * 7,
        "m2": [NOTHING],
        "m3": [NOTHING],
    }, "masters that follow get a heartbeat every two seconds"


@pytest.mark.row("S0.26", "S0.27")
def test_change_is_reported_once():
    async def work(scenario, server):
        await server.pass_ms(1100)
        server.heartbeater.changed(TWO)
        return await server.pass_ms(1100)

    assert reports_of(work)["m1"] == [(False, [TWO]), NOTHING, NOTHING]


@pytest.mark.row("S0.24")
def test_only_new_leader_gets_full_report():
    async def work(scenario, server):
        await server.pass_ms(1100)
        scenario.elect("m2")
        return await server.pass_ms(1700)

    received = reports_of(work)
    assert received["m2"].count(BOTH) == 1
    assert set(map(str, received["m2"])) == {str(BOTH), str(NOTHING)}
    assert set(map(str, received["m1"] + received["m3"])) == {str(NOTHING)}


@pytest.mark.row("S0.23")
def test_change_is_reported_immediately_to_leader_master_only():
    async def work(scenario, server):
        await server.pass_ms(1100)
        server.heartbeater.changed(TWO)
        first = await server.pass_ms(100)
        scenario.elect("m2")
        await server.pass_ms(1700)
        server.heartbeater.changed(TWO)
        return first, await server.pass_ms(100)

    first, then = reports_of(work)
    assert first == {"m1": [(False, [TWO])], "m2": [], "m3": []}
    assert then == {"m1": [], "m2": [(False, [TWO])], "m3": []}


@pytest.mark.row("S0.36")
def test_report_with_lost_answer_is_sent_again():
    async def work(scenario, server):
        await server.pass_ms(1100)
        scenario.unanswered = ["m1"]
        server.heartbeater.changed(TWO)
        lost = await server.pass_ms(700)
        scenario.unanswered = []
        return lost, await server.pass_ms(1200)

    lost, later = reports_of(work)
    assert lost["m1"] == [(False, [TWO])] * len(lost["m1"])
    assert lost["m3"][0] == (False, [TWO]), "all get the change when the leader does not answer"
    assert later["m1"][0] == (False, [TWO])
    assert later["m1"][1:] == [NOTHING] * (len(later["m1"]) - 1)


def test_masters_that_follow_get_heartbeats_as_often_as_leader_while_it_does_not_answer():
    async def work(scenario, server):
        await server.pass_ms(4100)
        server.heartbeater.changed(TWO)  # from now on the leader's heartbeats are at other times
        await server.pass_ms(200)
        scenario.unanswered = ["m1"]
        del scenario.received[:]
        while not scenario.received:
            await scenario.env.tasks.sleep_ms(1)
        await scenario.env.tasks.sleep_ms(50)
        first = [master for master, _ in scenario.received]
        return first, await server.pass_ms(3000)

    first, then = reports_of(work)
    assert first == ["m1", "m2", "m3"], "all are asked as soon as the leader's answer is missing"
    assert len(then["m2"]) >= 5


def test_master_that_has_not_reported_the_catalog_gets_heartbeats_as_often_as_leader():
    """The server takes no orders before a majority of the masters has reported it."""

    async def work(scenario, server):
        for name, catalog in zip(MASTERS, ("c", "", "c"), strict=True):
            answers_with(scenario.masters[name].heartbeats, catalog)
        return await server.pass_ms(3600)

    received = reports_of(work)
    assert len(received["m2"]) == len(received["m1"])
    assert len(received["m3"]) == 2


def answers_with(service, catalog):
    """Let a master report an incarnation of its catalog."""
    heartbeat = service.heartbeat

    async def answer(request):
        response = await heartbeat(request)
        response.catalog_incarnation = catalog
        return response

    service.heartbeat = answer


@pytest.mark.row("S0.24")
def test_new_leader_is_found_at_next_heartbeat_to_its_predecessor():
    async def work(scenario, server):
        await server.pass_ms(4100)
        scenario.elect("m3")
        return await server.pass_ms(1200)

    assert BOTH in reports_of(work)["m3"]


@pytest.mark.row("S0.36", "S0.84")
def test_report_that_leader_failed_to_replicate_is_sent_again():
    async def work(scenario, server):
        await server.pass_ms(1100)
        scenario.failure = "refused"
        server.leaders[TWO] = "b"
        server.heartbeater.changed(TWO)
        return (await server.pass_ms(1200))["m1"], scenario.lines

    received, lines = reports_of(work, [ONE, TWO])
    assert received == [(False, [TWO]), (False, [TWO]), NOTHING]
    assert lines[-2] == "a write is refused"
    assert lines[-1].startswith("writes tablet t2 RUNNING")


@pytest.mark.row("S0.36")
def test_removed_and_readded_master_accepts_reports():
    async def work(scenario, server):
        await server.pass_ms(5100)  # it leads for some reports, and records their numbers
        server.masters = ["m2:1", "m3:1"]
        scenario.elect("m2")
        await server.pass_ms(1100)
        server.masters = [f"{m}:1" for m in MASTERS]
        scenario.elect("m1")
        await server.pass_ms(1100)
        server.leaders[TWO] = "b"
        server.heartbeater.changed(TWO)
        return (await server.pass_ms(1100))["m1"], scenario.lines

    received, lines = reports_of(work, [ONE, TWO])
    assert received == [(False, [TWO]), NOTHING, NOTHING]
    assert lines[-1].startswith("writes tablet t2 RUNNING")


class SilentMasters:
    """Calls that are not answered as long as `silent` is set."""

    def __init__(self, rpc):
        self.rpc, self.silent = rpc, True

    async def call(self, address, method, request, *, timeout_ms):
        if self.silent:
            raise Unavailable("the stream port 127.0.0.1:9 does not answer")
        return await self.rpc.call(address, method, request, timeout_ms=timeout_ms)


def test_master_that_answers_no_heartbeat_is_logged_once_and_its_answers_too(caplog):
    caplog.set_level("INFO", heartbeater.__name__)

    def logged():
        return [r.getMessage() for r in caplog.records if r.name == heartbeater.__name__]

    async def work(scenario, server):
        rpc = SilentMasters(scenario.env.rpc)
        reporter = Reporter(lambda: server_info("b"), lambda wanted: [], AsyncMock())
        Heartbeater(replace(scenario.env, rpc=rpc), lambda: ["m1:1"], reporter, 500, 5000).start()
        await scenario.env.tasks.sleep_ms(4_000)
        assert logged() == [], "a master that is restarted is not worth a warning"
        await scenario.env.tasks.sleep_ms(20_000)
        rpc.silent = False
        await scenario.env.tasks.sleep_ms(4_000)

    reports_of(work)
    assert logged() == [
        "master m1:1 has answered no heartbeat for 5 s; if it leads, this server counts as dead: "
        "the stream port 127.0.0.1:9 does not answer [UNAVAILABLE]",
        "master m1:1 answers heartbeats again",
    ]
