"""Look-ups that any master answers within a bound on their age: real masters and log, virtual time."""

from dataclasses import replace

import pytest

from nyala.common.errors import NotLeader, Retryable
from nyala.common.ids import SYS_CATALOG
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import create_table
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import CLIENT_OPTIONS
from tests.unit.master.support.ddl_cluster import with_cluster
from tests.unit.master.support.ddl_operations import create_request as ranged_request
from tests.unit.master.support.ddl_operations import plan_inputs, put, with_table
from tests.unit.master.support.follower_reads import BOUND_MS, started, within
from tests.unit.master.support.master_cluster import NAMES, others, with_masters
from tests.unit.master.support.master_helpers import create_request


async def refusal(asking):
    """Return the answer, or the error."""
    try:
        return await asking
    except NotLeader as err:
        return err


async def every_question(masters, name, table_id, staleness):
    """Send a master all requests that a follower answers; return the answers."""
    asked = (
        (methods.LIST_TABLES, pb.ListTablesRequest(staleness=staleness)),
        (methods.DESCRIBE_TABLE, pb.DescribeTableRequest(name="t", staleness=staleness)),
        (
            methods.TABLET_LOCATIONS,
            pb.TabletLocationsRequest(table_id=table_id, staleness=staleness),
        ),
        (methods.LIST_SERVERS, pb.ListServersRequest(staleness=staleness)),
    )
    return [await masters.ask(name, method, request) for method, request in asked]


@pytest.mark.row("S0.86", "W8")
def test_single_follower_serves_reads_within_staleness_bound_and_refuses_beyond_it():
    async def work(masters):
        leader, table_id = await started(masters)
        await masters.loop.delay(20_000_000)  # without writes, its catalog stays fresh
        alone, other = others(leader)
        masters.processes[leader].kill()
        masters.network.partition([other], ["me", alone])
        ages = []
        while True:
            answers = await refusal(every_question(masters, alone, table_id, within()))
            if isinstance(answers, NotLeader):
                assert answers.details["reason"] == "TOO_OLD"
                assert f"older than {BOUND_MS} ms" in answers.message
                break
            assert [t.name for t in answers[0].tables] == ["t"]
            assert answers[1].id == table_id
            assert len(answers[2].tablets[0].replicas) == 3
            assert {s.uuid for s in answers[3].servers if s.role == "tserver"} == set("abc")
            ages.append(max(a.as_of.age_ms for a in answers))
            assert all(a.as_of.follower for a in answers)
            await masters.loop.delay(100_000)
        assert ages == sorted(ages), "the reported age grows"
        assert 4_000 < ages[-1] <= BOUND_MS, "answers continue until the age reaches the bound"
        with pytest.raises(NotLeader):
            await masters.tables(alone)

    with_masters(work)


@pytest.mark.row("S0.86")
def test_follower_read_contains_definitions_up_to_its_time_and_leader_read_the_latest():
    async def work(masters):
        leader, table_id = await started(masters)
        follower = others(leader)[0]
        for name in NAMES:
            answers = await every_question(masters, name, table_id, within())
            assert [a.as_of.follower for a in answers] == [name != leader] * 4
            if name == leader:
                assert [a.as_of.age_ms for a in answers] == [0] * 4
            else:
                assert {a.as_of.leader_address for a in answers} == {f"{leader}:1"}
        made = await masters.ask(leader, methods.CREATE_TABLE, create_request("u"))
        refused = 0
        while True:
            request = pb.ListTablesRequest(staleness=within(not_before=made.at))
            answer = await refusal(masters.ask(follower, methods.LIST_TABLES, request))
            if isinstance(answer, NotLeader):
                assert answer.details["reason"] == "TOO_OLD"
                refused += 1
                await masters.loop.delay(1_000)
                continue
            assert [t.name for t in answer.tables] == ["t", "u"]
            assert answer.as_of.at >= made.at
            break
        assert refused, "the follower could not know the table yet"
        absent = pb.DescribeTableRequest(name="v", staleness=within())
        with pytest.raises(NotLeader) as raised:
            await masters.ask(follower, methods.DESCRIBE_TABLE, absent)
        assert raised.value.details["reason"] == "NOT_HERE", (
            "only the leader reports that a table does not exist"
        )
        with pytest.raises(NotLeader):
            await every_question(masters, follower, table_id, None)

    with_masters(work)


@pytest.mark.row("S0.86")
def test_follower_catalog_shows_only_complete_batches_after_renames():
    """Tables are created, exchange names and are dropped under concurrent look-ups."""

    async def work(ddl):
        cluster, seen = ddl.cluster, set()
        done: list[bool] = []

        async def look():
            me = cluster.clients[0].env.rpc
            while not done:
                leader = cluster.leader_of(SYS_CATALOG)
                for process in cluster.masters:
                    if process is leader:
                        continue
                    request = pb.ListTablesRequest(staleness=within(60_000))
                    answer = await me.call(
                        process.address, methods.LIST_TABLES, request, timeout_ms=5_000
                    )
                    names = [t.name for t in answer.tables]
                    assert len(names) == len(set(names))
                    assert all(t.tablets == 4 for t in answer.tables), (
                        "a table has all of its tablets or none"
                    )
                    seen.add(tuple(sorted(names)))
                await ddl.core.env.tasks.sleep_ms(3)

        async def define():
            one, two = await ddl.create("one", 4), await ddl.create("two", 4)
            for _ in range(3):
                one = await ddl.alter(one, ("rename", "free"))
                two = await ddl.alter(two, ("rename", "one"))
                one = await ddl.alter(one, ("rename", "two"))
                one, two = two, one
            await ddl.ask(ddl.core.ddl.drop_table, "one")
            done.append(True)

        looking = cluster.clients[0].run(look)
        await define()
        await looking
        assert {(), ("one",), ("one", "two"), ("free", "two"), ("free", "one")} <= seen

    with_cluster(work)


@pytest.mark.row("S0.86")
@pytest.mark.parametrize("paused", [False, True])
def test_tablet_lookups_continue_while_leader_master_is_dead(paused):
    async def work(ddl):
        table = await ddl.create("t", 4)
        await ddl.core.env.tasks.sleep_ms(1_000)
        victim = ddl.cluster.leader_of(SYS_CATALOG)
        if paused:
            rest = [s.name for s in (*ddl.cluster.servers, *ddl.cluster.clients) if s is not victim]
            ddl.cluster.network.partition([victim.name], rest)
        else:
            victim.kill()
        answered = 0
        while ddl.leading() is None or ddl.cluster.leader_of(SYS_CATALOG) is victim:
            await ddl.ask(ddl.core.locations.refresh, table, 1_000)
            assert (await ddl.open("t")).id == table.id
            answered += 1
            await ddl.core.env.tasks.sleep_ms(20)
        assert answered >= 3, "answered without a leader"
        strict = ddl.cluster.client(replace(CLIENT_OPTIONS, lookup_max_age_ms=0))
        if not paused:
            for process in ddl.cluster.masters:
                if process is not victim and process is ddl.cluster.leader_of(SYS_CATALOG):
                    process.kill()
            with pytest.raises(Retryable):
                await ddl.cluster.run(
                    ddl.cluster.clients[1], strict.locations.open, "t", 500
                )  # `max_age_ms` 0: only the leader may answer
            assert (await ddl.open("t")).id == table.id

    with_cluster(work)


@pytest.mark.row("S0.86")
def test_name_reassigned_between_two_catalog_reads_resolves_to_new_table():
    """Two tables have exchanged their names through a third one."""
    catalog = with_table()
    put(catalog, create_table.operation(ranged_request("u"), plan_inputs(4)))
    one, two = catalog.require("t").edit(), catalog.require("u").edit()
    one.spec.name, two.spec.name = "u", "t"
    catalog.follow(CatalogPlan(tables=(one, two)))
    assert {t.name: t.id for t in catalog.tables()} == {"u": one.id, "t": two.id}
