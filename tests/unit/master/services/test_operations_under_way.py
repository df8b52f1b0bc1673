"""`nyala ops` with real masters on virtual time: ids, commit points and waits, under every leader."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.errors import NotFound
from nyala.master.access.authorities import RotationStep
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl import operation
from nyala.master.ddl.operation import CatalogOperation, InFlight, LeaderMemory, OperationStep
from nyala.master.services.operations import listing
from nyala.master.services.operations.waits import LeaderView
from nyala.master.tservers import TServers
from nyala.security.authorities import bundle
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as access
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.master.support.master_cluster import others, with_masters
from tests.unit.master.support.rotation import begun, key_folders

pytestmark = pytest.mark.row("W10")


def with_cluster(work, seed=13):
    async def main(loop):
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        return await work(cluster, core)

    return run(main, max_time_s=300)


async def asked(cluster, fn, *args):
    return await cluster.run(cluster.clients[-1], fn, *args)


async def ops(cluster, core, wanted=""):
    request = pb.InspectMasterRequest(operation=wanted)
    call = core.masters.call
    return await asked(cluster, lambda: call(methods.INSPECT_MASTER, request, timeout_ms=15_000))


@pytest.mark.full
def test_deletion_that_waits_for_a_stopped_server_has_one_id_under_each_leader():
    async def work(cluster, core):
        table = (await cluster.create_table(core, "t")).id
        await cluster.loop.delay(2_000_000)
        stopped = cluster.tservers[0]
        uuid = stopped.server.uuid
        stopped.kill()
        await cluster.loop.delay(5_000_000)
        await asked(cluster, core.ddl.drop_table, "t")
        await cluster.loop.delay(4_000_000)
        for changed_leader in (False, True):
            if changed_leader:
                leader = cluster.leader_master()
                leader.kill()
                await cluster.loop.delay(5_000_000)
                leader.restart()
            answer = await ops(cluster, core)
            assert not answer.operations
            (listed,) = answer.long_operations
            assert (listed.id, listed.subject) == (f"delete-{table}", "t")
            assert "1 replica of 1 tablet may remain" in listed.step
            shown = (await ops(cluster, core, listed.id)).long_operations[0]
            (wait,) = shown.waits
            assert wait.server == uuid
            assert wait.address
            assert (wait.what, bool(wait.last_error)) == ("call DeleteTablet", True) or (
                wait.what.endswith(("sends no heartbeats", "not reported to this leader"))
            )
        stopped.restart()
        await cluster.loop.delay(8_000_000)
        assert not (await ops(cluster, core)).long_operations
        with pytest.raises(NotFound, match="is under way"):
            await ops(cluster, core, f"delete-{table}")

    with_cluster(work)


@pytest.mark.full
def test_alteration_shows_the_call_that_is_not_carried_out_and_its_last_error():
    async def work(cluster, core):
        table = (await cluster.create_table(core, "t")).id
        await cluster.loop.delay(2_000_000)
        (tablet,) = cluster.groups()[-1:]
        leader = cluster.leader_of(tablet)
        others = [p for p in cluster.tservers if p is not leader]
        for process in others:
            process.kill()
        request = pb.AlterTableRequest(id=table)
        request.steps.add(drop_column="v")
        call = core.masters.call
        await asked(cluster, lambda: call(methods.ALTER_TABLE, request, timeout_ms=15_000))
        await cluster.loop.delay(20_000_000)
        listed = (await ops(cluster, core)).long_operations
        assert [o.id for o in listed] == [f"alter-{table}"]
        assert listed[0].step == "0 of 1 tablets report schema version 1"
        (wait,) = (await ops(cluster, core, f"alter-{table}")).long_operations[0].waits
        assert (wait.what, wait.server, wait.tablet_id) == (
            "call AlterTablet", leader.server.uuid, tablet,
        )  # fmt: skip
        assert wait.attempts > 1
        assert wait.since_ms > 10_000
        assert wait.last_error
        for process in others:
            process.restart()
        await cluster.loop.delay(20_000_000)
        assert not (await ops(cluster, core)).long_operations

    with_cluster(work)


@pytest.mark.full
def test_replacement_of_the_authority_is_listed_until_the_old_one_is_retired(tmp_path):
    keys = key_folders(tmp_path)

    async def listed(masters, leader):
        answer = await masters.ask(leader, methods.INSPECT_MASTER, pb.InspectMasterRequest())
        return [(o.id, o.step, o.waits[0].what) for o in answer.long_operations]

    async def work(masters):
        leader, new, reports = await begun(masters, keys)
        name = f"rotate-{bundle.key_id(new)}"
        added = (name, RotationStep.ADDED.value)
        condition = "every live server trusts the new authority and has its key (nyala ca show)"
        assert await listed(masters, leader) == [(*added, condition)]
        masters.processes[leader].kill()
        leader, left = await masters.leader(others(leader)), others(leader)
        assert await listed(masters, leader) == [(*added, condition)]
        answer = await reports.until_step(leader, left, None)
        trusted = b"".join(answer.certificates)
        await reports.until_step(leader, [*left, "t"], trusted)
        (found,) = await listed(masters, leader)
        assert found[:2] == (name, RotationStep.ISSUING.value)
        assert "nyala ca retire" in found[2]
        retire = access.RetireAuthorityRequest(force=True)
        await masters.ask(leader, methods.RETIRE_AUTHORITY, retire)
        assert await listed(masters, leader) == []

    with_masters(work, keys=keys)


def test_operations_in_flight_wait_for_a_majority_of_masters_and_for_locks():
    class Majority:
        """Replicates once it is let go."""

        def __init__(self):
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def replicate(self, rows):
            self.asked.set()
            await self.go.wait()

    async def work():
        rows, times = Majority(), itertools.count(0, 1_000)
        orders = SimpleNamespace(enqueue=lambda actions: None)
        memory: Any = LeaderMemory(
            7, Catalog(), rows, orders, Locks(), lambda: None, lambda: next(times)
        )
        server = pb.ListedServer(uuid="a" * 32, version=1)
        wanted = CatalogOperation(
            "mark", lambda _: Scope(names=("t",)), lambda _: CatalogPlan(servers=(server,))
        )
        running = [asyncio.ensure_future(operation.run(wanted, memory)) for _ in range(2)]
        await rows.asked.wait()
        term: Any = SimpleNamespace(memory=memory, catalog=memory.catalog)
        view = LeaderView(term, TServers(1), 1_000_000)
        answer = pb.InspectMasterResponse()
        listing.fill(answer, view)
        first, second = answer.operations
        assert (first.id, first.step, first.committed) == ("7.1", "REPLICATE", False)
        assert first.waits[0].what == "a majority of the masters writes the batch"
        assert first.waits[0].since_ms > 900
        assert (second.id, second.step, list(second.locks)) == ("7.2", "LOCK", ["name:t"])
        assert second.waits[0].what == "lock name:t, held by 7.1 (mark)"
        one = pb.InspectMasterResponse()
        listing.fill(one, view, "7.2")
        assert [o.id for o in one.operations] == ["7.2"]
        assert [row[-1] for row in listing.page(view).rows] == [
            first.waits[0].what, second.waits[0].what,
        ]  # fmt: skip
        rows.go.set()
        memory.catalog.publish = lambda draft: None
        await asyncio.gather(*running, return_exceptions=True)
        assert not memory.in_flight

    asyncio.run(work())


def test_list_of_operations_that_wait_for_one_lock_takes_linear_time():
    def steps(waiting: int) -> int:
        """Return the number of locks that are read for a list."""
        read = 0

        class Counted(Scope):
            def ordered(self) -> Any:
                nonlocal read
                read += 1
                return super().ordered()

        flights = {
            number: InFlight(
                "alter",
                Counted(names=("t",)),
                OperationStep.LOCK if number else OperationStep.PLAN,
                0,
                0,
            )
            for number in range(waiting)
        }
        memory = SimpleNamespace(term=7, in_flight=flights)
        term: Any = SimpleNamespace(memory=memory, catalog=Catalog())
        answer = pb.InspectMasterResponse()
        listing.fill(answer, LeaderView(term, TServers(1), 1_000_000))
        held = [o.waits[0].what for o in answer.operations if o.waits]
        assert held == ["lock name:t, held by 7.0 (alter)"] * (waiting - 1)
        return read

    assert steps(400) <= 4 * steps(100)


def test_option_of_the_list_before_show_is_refused():
    words = ["ops", "--masters", "127.0.0.1:1", "show", "alter-x", "--masters", "127.0.0.1:1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "give the options of `nyala ops show` after its name" in done.output
