"""Masters added and removed by commands, with real servers in virtual time: completed, cut off, refused."""

from dataclasses import replace
from functools import partial
from unittest.mock import AsyncMock

import msgspec
import pytest

from nyala.client.core import ClientCore
from nyala.common.errors import Forbidden, InvalidArgument, NyalaError, TimedOut, Unavailable
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.operate.master_group import MasterGroup
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.faults.master_changes import change, operator
from tests.sim.systems.cluster import CLIENT_OPTIONS, OPTIONS
from tests.unit.cli.support.cli_masters import leading, with_scenario
from tests.unit.cli.support.member_commands import Calls, Killed, die


def of(processes):
    return sorted(p.address for p in processes)


@pytest.mark.row("S2.15", "S0.85")
def test_master_group_grows_and_shrinks_while_client_knows_one_old_address():
    async def work(scenario):
        cluster = scenario.cluster
        opened = await cluster.create_table(scenario.core, "kept")
        await cluster.add_workers(1, "kept")
        first = cluster.masters[0]
        for size in (2, 3, 4, 5):
            _, voters = await scenario.do("add", scenario.a_master(first.address).address)
            assert len(voters) == size
        assert voters == of(cluster.masters)
        for removed in (cluster.leader_master(), cluster.masters[1]):
            removed = removed if removed.address in scenario.masters else cluster.masters[2]
            _, voters = await scenario.do("remove", removed.address)
            assert removed.address not in voters
            removed.kill()
        assert len(voters) == 3
        again, voters = await scenario.do("remove", removed.address)
        assert again.done == []
        made = await cluster.create_table(cluster.client(), "later")
        known = [t.name for t in await cluster.run(cluster.clients[-1], scenario.core.tables)]
        assert sorted(known) == ["kept", "later"], "an old client finds the new masters"
        assert (opened.id, made.id) != ("", "")
        for server in cluster.tservers:
            assert sorted(server.server.masters.current()) == voters
        await cluster.finish()

    with_scenario(work)


def test_interrupted_master_command_continues_when_repeated():
    killed = []

    async def cut(scenario, verb, address, at, moment):
        try:
            await scenario.do(verb, address, at=at, **{moment: die})
        except Killed:
            killed.append((verb, at, moment))

    async def work(scenario):
        cluster = scenario.cluster
        for at, moment in ((1, "before"), (1, "after"), (2, "after"), (3, "after")):
            went = cluster.leader_master().address
            await cut(scenario, "remove", went, at, moment)
            _, voters = await scenario.do("remove", went)
            assert went not in voters
            await cut(scenario, "add", went, min(at, 2), moment)
            _, voters = await scenario.do("add", went)
            assert voters == of(cluster.masters)

    with_scenario(work, masters=3)
    assert len(killed) >= 7, "one step fewer if the removed master deletes its catalog by itself"


@pytest.mark.row("S2.5")
def test_removed_absent_master_stops_serving_on_return_and_may_be_added_again():
    async def work(scenario):
        cluster = scenario.cluster
        absent = next(m for m in cluster.masters if m is not cluster.leader_master())
        absent.kill()
        _, voters = await scenario.do("remove", absent.address)
        assert absent.address not in voters
        await cluster.create_table(scenario.core, "since")
        await cluster.loop.delay(
            10_000_000
        )  # the leader's last message to it is not repeated for ever
        absent.start()
        await scenario.until(
            lambda: absent.server and "was removed" in str(absent.server.failure),
            "the removed master reports its removal",
        )
        assert "was removed" in absent.server.failure.message, (
            "the removed master reports that it does not serve"
        )
        assert len(cluster.leader_master().server.pages()["/masters"]().rows) == 2
        with pytest.raises(Unavailable, match="was removed from the masters, which are"):
            await scenario.ask(absent.address, methods.LIST_TABLES, pb.ListTablesRequest())
        absent.kill()
        absent.start()
        await scenario.until(
            lambda: absent.server and "removed" in str(absent.server.failure),
            "it does not serve after another start",
        )
        status = await scenario.ask(absent.address, methods.MASTER_STATUS, pb.MasterStatusRequest())
        assert sorted(m.address for m in status.consensus.members) == voters, (
            "the removed master reports the present members"
        )
        core = ClientCore(cluster.clients[0].env, [absent.address], CLIENT_OPTIONS)
        tables = await cluster.run(cluster.clients[0], core.tables)
        assert [t.name for t in tables] == ["since"], (
            "a client that knows only the removed master finds the others"
        )
        _, voters = await scenario.do("add", absent.address)
        assert voters == of(cluster.masters)

    with_scenario(work, masters=3)


@pytest.mark.row("S2.5")
def test_removed_masters_brought_back_alone_elect_no_leader_and_serve_nothing():
    async def work(scenario):
        cluster = scenario.cluster
        await cluster.create_table(scenario.core, "before")
        leader = cluster.leader_master()
        removed = [m for m in cluster.masters if m is not leader][:2]
        for absent in removed:
            absent.kill()
            _, voters = await scenario.do("remove", absent.address)
        assert len(voters) == 3
        await cluster.create_table(scenario.core, "since")
        current = [m for m in cluster.masters if m not in removed]
        for master in current:
            master.kill()
        for absent in removed:
            absent.start()
        core = ClientCore(
            cluster.clients[0].env, of(removed), replace(CLIENT_OPTIONS, timeout_ms=20_000)
        )

        async def stale():
            return await core.tables(max_age_ms=3_600_000)

        for ask in (core.tables, stale):
            with pytest.raises(TimedOut):
                await cluster.run(cluster.clients[0], ask)
        current[0].start()  # one of three: still no majority, with the removed ones neither
        await cluster.loop.delay(10_000_000)  # several election timeouts
        assert cluster.leader_master() is None
        current[1].start()
        for absent in removed:
            await scenario.until(
                lambda absent=absent: absent.server and "was removed" in str(absent.server.failure),
                "a removed master reports its removal",
            )
        assert [t.name for t in await cluster.run(cluster.clients[0], core.tables)] == [
            "before",
            "since",
        ]

    with_scenario(work, masters=5)


def test_added_master_that_never_starts_blocks_nothing():
    async def work(scenario):
        cluster = scenario.cluster
        made = scenario.a_master()
        with pytest.raises(Killed):
            await scenario.do("add", made.address, at=1, after=die)
        made.kill()
        server = cluster.tservers[0]
        server.kill()
        server.start()
        await cluster.create_table(scenario.core, "t")
        await scenario.until(
            lambda: server.server.fence.incarnation, "the tablet server follows the single master"
        )
        _, voters = await scenario.do("remove", made.address)
        assert voters == scenario.masters == [cluster.masters[0].address]

    with_scenario(work)


def test_command_waits_until_masters_of_a_new_cluster_have_created_it():
    async def work(scenario):
        await scenario.until(lambda: scenario.cluster.masters[0].server.cluster_id, "it is created")
        answers: list[str] = []

        def early(rpc):
            async def call(address, method, request, *, timeout_ms):
                answer = await rpc.call(address, method, request, timeout_ms=timeout_ms)
                if method == methods.MASTER_STATUS:
                    answers.append(answer.cluster_id)
                    if len(answers) < 4:  # as before the first leader has created the cluster
                        answer.cluster_id = ""
                return answer

            return Calls(call, rpc)

        known = scenario.cluster.masters[0].address
        group = operator(scenario.cluster, known, wire=early)
        await change(scenario.cluster, group, "remove", "nowhere:7051")
        assert len(answers) >= 4
        assert group.directory.id == answers[0]

    with_scenario(work)


def test_invalid_master_is_refused_without_changes():
    async def work(scenario):
        cluster = scenario.cluster
        only = cluster.masters[0]
        with pytest.raises(InvalidArgument, match="is the only master"):
            await scenario.do("remove", only.address)
        with pytest.raises(InvalidArgument, match="there is a tserver, not a master"):
            await scenario.do("add", cluster.tservers[0].address)
        silent = scenario.a_master(start=False)
        with pytest.raises(Unavailable, match="Start the new one first: nyala master run"):
            await scenario.do("add", silent.address)
        other = scenario.a_master()
        await other.started
        await other.run(partial(other.server.identity.learn, cluster_id="c" * 32))
        with pytest.raises(Forbidden, match="belongs to cluster"):
            await scenario.do("add", other.address)
        for name, error, said in (
            ("master-0", InvalidArgument, "host:port"),
            (only.server.identity.uuid[:8], InvalidArgument, "host:port"),
            (cluster.tservers[0].address, InvalidArgument, "there is a tserver, not a master"),
            (other.address, Forbidden, "belongs to cluster"),
        ):
            with pytest.raises(error, match=said):
                await scenario.do("remove", name)
        for gone in ("nowhere:7051", "f" * 32):
            group, _ = await scenario.do("remove", gone)
            assert group.done == []
        assert scenario.masters == [only.address]

    with_scenario(work)


def test_master_removal_requires_answering_majority():
    async def work(scenario):
        cluster = scenario.cluster
        leader = cluster.leader_master()
        silent, absent = [m for m in cluster.masters if m is not leader]
        silent.kill()
        await cluster.loop.delay(3_000_000)
        before = scenario.masters
        with pytest.raises(TimedOut, match=r"only 1 of the 2 voters after the change respond"):
            await scenario.do("remove", absent.address, timeout_ms=3_000)
        assert scenario.masters == before
        silent.start()
        _, voters = await scenario.do("remove", absent.address)
        assert voters == of([leader, silent])

    with_scenario(work, masters=3)


@pytest.mark.row("S2.16")
def test_master_start_requires_current_or_former_peer_list():
    async def work(scenario):
        cluster = scenario.cluster
        first = cluster.masters[0]
        for _ in range(2):
            await scenario.do("add", scenario.a_master(first.address).address)
        grown = cluster.masters[2]
        for process, expected in (
            (first, (first.address,)),
            (grown, (first.address, grown.address)),
        ):
            process.kill()
            process.start()
            await process.started
            assert process.server.identity.instance.masters[-1] == tuple(of(cluster.masters)), (
                expected
            )
        for lists, text in (
            ((first.address, "master-7:7050"), "master-7:7050 is given and no master"),
            ((first.address, grown.address), "master-1:7050 is a master and not given"),
        ):
            first.kill()
            config = MasterConfig(
                "/data", first.address, first.peer_address, master_addresses=lists,
                options=cluster.options,
            )  # fmt: skip
            usual, first.program = first.program, lambda e, t, c=config: Master(e, c, t)
            first.start()
            with pytest.raises(InvalidArgument, match=text):
                await first.started
            first.failures.clear()
            first.kill()
            first.program = usual
            first.start()
            await first.started
        await scenario.until(cluster.leader_master, "a master leads")
        assert scenario.masters == of(cluster.masters)

    with_scenario(work)


@pytest.mark.row("S2.16")
def test_new_master_restarts_after_crash_with_installed_copy():
    """The list of a master is not checked until its first start is complete."""

    async def work(scenario):
        first, removed = scenario.cluster.masters[0], scenario.a_master()
        await scenario.do("add", removed.address)
        new = scenario.a_master(first.address, removed.address)
        await new.started
        new.server.identity.learn = AsyncMock()  # its first start was not completed
        await scenario.do("add", new.address)
        await scenario.do("remove", removed.address)
        new.kill()
        new.start()
        await new.started
        await scenario.until(lambda: leading(new) is not None, "the master is a member again")

    with_scenario(work)


@pytest.mark.row("W6")
def test_tablet_server_with_old_master_list_finds_current_masters():
    async def work(scenario):
        cluster = scenario.cluster
        first, server = cluster.masters[0], cluster.tservers[0]
        for _ in range(3):
            await scenario.do("add", scenario.a_master(first.address).address)
        _, voters = await scenario.do("remove", first.address)
        for followed in cluster.tservers:
            assert sorted(followed.server.masters.current()) == voters, (
                "the command waits for the tablet servers' lists"
            )
        first.kill()
        server.kill()
        server.start()  # its list has only the first master
        await scenario.until(
            lambda: server.server is not None and sorted(server.server.masters.current()) == voters,
            "the tablet server reports to its saved masters",
        )
        leader = cluster.leader_master()
        alive = leader.server.tservers.alive
        now = cluster.loop.time
        await scenario.until(
            lambda: len(alive(int(now() * 1e6))) == 3, "the masters list the tablet server"
        )
        core = ClientCore(cluster.clients[0].env, [first.address], CLIENT_OPTIONS)
        with pytest.raises(NyalaError, match="masters may have been added and removed since"):
            await cluster.run(cluster.clients[0], core.masters.reach, 2_000)

    slow = msgspec.structs.replace(OPTIONS, server_heartbeat_ms=2_000)
    with_scenario(work, options=slow)


def test_master_list_needs_no_leader():
    async def work(scenario):
        cluster = scenario.cluster
        leader = cluster.leader_master()
        others = [m for m in cluster.masters if m is not leader]
        leader.kill()
        others[0].kill()
        cluster.client()
        core = ClientCore(cluster.clients[-1].env, [others[1].address], CLIENT_OPTIONS)
        found = await cluster.run(cluster.clients[-1], MasterGroup(core).view)
        assert sorted(m.address for m in found.config.members) == of(cluster.masters)
        assert found.leader is None

    with_scenario(work, masters=3)
