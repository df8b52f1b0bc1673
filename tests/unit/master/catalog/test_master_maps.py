"""A master's maps in memory, read through its debug call and pages, and removals from them."""

import json

import pytest

from nyala.common.errors import NotLeader, Retryable
from nyala.common.ids import TableId, TabletId
from nyala.master.catalog import queries
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import alter_table, drop_table, recall_table
from nyala.master.tservers import TServers
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_operations import altered, loaded, put, rows_of, with_table
from tests.unit.master.support.master_cluster import NAMES, others, with_masters
from tests.unit.master.support.master_helpers import report, server_info


async def maps(masters, leader):
    request = pb.InspectMasterRequest(maps=True)
    asked = await masters.ask(leader, methods.INSPECT_MASTER, request)
    return json.loads(asked.maps)


async def drop(masters, leader, name):
    await masters.ask(leader, methods.DROP_TABLE, pb.DropTableRequest(name=name))


async def send_heartbeat(masters, leader, server, *reports):
    masters.sequence += 1
    request = pb.HeartbeatRequest(
        server=server_info(server), full=True, report_sequence=masters.sequence, tablets=reports
    )
    return await masters.ask(leader, methods.HEARTBEAT, request)


@pytest.mark.row("S0.11", "S0.12", "S0.10")
def test_catalog_maps_index_servers_tables_and_tablets_with_replicas():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        table = await masters.create(leader, "t")
        (tablet,) = (await maps(masters, leader))["tablets"]
        await send_heartbeat(masters, leader, "b", report(tablet, leader="b", term=3))
        await masters.loop.delay(700_000)
        shown = await maps(masters, leader)
        assert shown["tables"][table]["name"] == "t"
        assert shown["tablets"][tablet] | {"config": 0, "first_schema_version": 0, "term": 0} == (
            shown["tablets"][tablet]
            | {"table": table, "members": ["a", "b", "c"], "leader": "b", "reported_by": ["b"]}
            | {"config": 0, "first_schema_version": 0, "term": 0}
        )
        assert shown["tablets_of"] == {table: [tablet]}
        servers = shown["tservers"]
        assert list(servers) == ["a", "b", "c"]
        assert {(u, s["uuid"], s["address"]) for u, s in servers.items()} == {
            (u, u, f"{u}:1") for u in "abc"
        }
        assert [s["replicas"] for s in servers.values()] == [{}, {tablet: "RUNNING"}, {}]
        assert servers["b"]["heard_ms_ago"] >= 700, "silent since its last heartbeat to this master"
        assert servers["b"]["full_in_term"] == masters.master(leader).leading.current().memory.term
        with pytest.raises(NotLeader):
            await maps(masters, others(leader)[0])

    with_masters(work)


@pytest.mark.row("S0.13", "S0.14", "S0.15")
def test_dropped_tables_and_tablets_stay_in_catalog_without_their_names():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        first = await masters.create(leader, "t")
        (tablet,) = (await maps(masters, leader))["tablets"]
        await drop(masters, leader, "t")
        assert (await maps(masters, leader))["names"] == {}
        second = await masters.create(leader, "t")
        for name in NAMES:
            masters.processes[name].kill(power_cut=True)
        masters.start()
        leader = await masters.leader()
        shown = await maps(masters, leader)
        assert shown["names"] == {"t": second}
        states = {t: s["state"] for t, s in shown["tables"].items()}
        assert states == {first: "REMOVED", second: "RUNNING"}
        assert shown["tablets"][tablet]["state"] == "DELETED"
        assert len(shown["tablets"]) == 2

    with_masters(work)


@pytest.mark.row("S0.16")
def test_deleted_tablet_is_listed_with_its_table_until_catalog_reload():
    catalog = with_table()
    table = catalog.require("t")
    before = [t.id for t in catalog.tablets_of(table.id)]
    put(catalog, drop_table.operation(pb.DropTableRequest(name="t"), 5))
    assert [t.id for t in catalog.tablets_with_deleted(table.id)] == before
    assert not catalog.tablets_of(table.id)
    again = loaded(rows_of(catalog))
    assert not again.tablets_with_deleted(table.id)
    assert [again.tablet(t) is None for t in before] == [False, False], "deleted tablets are known"


@pytest.mark.row("S0.3")
def test_every_map_record_has_its_type_and_owner():
    """The tables as a new leader loads them from disk."""
    again = loaded(rows_of(with_table()))
    (table,) = again.tables()
    assert table.id
    assert [c.name for c in table.spec.schema.columns] == ["k", "v"]
    assert table.state.name == "RUNNING"
    tablets = again.tablets_of(table.id)
    assert len({t.id for t in tablets} | {table.id}) == 3
    for tablet, ends in zip(tablets, ((b"\x80", b"\x80"), (b"\x80", b"\x80")), strict=True):
        piece = tablet.record.partition.range
        assert (piece.lower.key[:1], piece.upper.key[:1]) == ends
        assert piece.lower.key < piece.upper.key
        assert [(m.uuid, m.address, m.voter) for m in tablet.consensus.members] == [
            (u, f"{u}:1", True) for u in "abc"
        ]
        assert tablet.table_id == table.id
        assert (tablet.state.name, tablet.consensus.leader) == ("RUNNING", "a")


@pytest.mark.row("S0.28")
def test_every_master_shows_which_tablet_servers_reach_it():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        partitioned = others(leader)[0]
        await masters.heartbeat("a", "b", "c")
        await masters.loop.delay(1_000_000)
        for _ in range(8):
            await masters.heartbeat("a", "b")
            await masters.heartbeat("c", among=tuple(n for n in NAMES if n != partitioned))
            await masters.loop.delay(1_000_000)
        for name in NAMES:
            bound = pb.Staleness(max_age_ms=5_000)
            request = pb.ListServersRequest(staleness=bound)
            answer = await masters.ask(name, methods.LIST_SERVERS, request)
            found = {s.uuid: s.alive for s in answer.servers if s.role == "tserver"}
            assert found == {"a": True, "b": True, "c": name != partitioned}
            page = masters.master(name).pages()["/tservers"]()
            shown = [dict(zip(page.headings, row, strict=True)) for row in page.rows]
            assert [row["alive"] for row in shown] == [
                "yes" if alive else "no" for alive in found.values()
            ]
            releases = [s.version for s in answer.servers if s.role == "tserver"]
            assert [row["release"] for row in shown] == releases

    with_masters(work)


@pytest.mark.row("S0.46")
def test_replicas_without_record_are_left_alone_counted_and_reported(caplog):
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await send_heartbeat(masters, leader, "a", report("f" * 32, leader="a", term=1))
        await masters.loop.delay(2_000_000)
        shown = await maps(masters, leader)
        assert shown["tservers"]["a"]["replicas"] == {"f" * 32: "RUNNING"}
        assert not shown["orders"]
        count = masters.master(leader).metrics.registry.get_sample_value
        assert count("nyala_master_orphans_reported_total") == 1

    with_masters(work)
    assert "of which the catalog has no record: it is not changed" in caplog.text


@pytest.mark.row("S0.18", "S0.19")
def test_former_leader_refuses_catalog_reads_and_frees_its_catalog():
    async def work(masters):
        masters.start()
        old = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        table_id = await masters.create(old, "t")
        held = masters.master(old).leading.current().memory
        masters.network.partition([old], others(old))
        assert held.dropped is None, "a deposed leader does not know it yet"
        for method, request in (
            (methods.LIST_TABLES, pb.ListTablesRequest()),
            (methods.DESCRIBE_TABLE, pb.DescribeTableRequest(name="t")),
            (methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=table_id)),
            (methods.LIST_SERVERS, pb.ListServersRequest()),
        ):
            with pytest.raises(Retryable):
                await masters.ask(old, method, request, timeout_ms=30_000)
        await masters.leader(others(old))
        await masters.loop.delay(100_000)
        assert held.dropped is not None
        assert masters.master(old).leading.term is None, (
            "the old leader steps down without a request"
        )

    with_masters(work)


@pytest.mark.row("S0.60")
def test_tablets_are_shown_before_their_table_and_the_other_maps_last():
    catalog = with_table()
    seen: list[object] = []

    class Watched(Catalog):
        def _put_tablet(self, tablet):
            seen.append(("tablet", self.table(tablet.table_id) is not None, self.named("u")))
            super()._put_tablet(tablet)

        def _put_table(self, table):
            count = len(self.tablets_of(table.id))
            seen.append(("table", count, self.cluster is not None))
            super()._put_table(table)

    (table,) = catalog.tables()
    tablets = tuple(t.record for t in catalog.tablets_of(table.id))
    watched = Watched()
    plan = CatalogPlan(tablets, (table.record,), catalog.cluster)
    watched.publish(watched.draft(plan))
    assert seen == [("tablet", False, None), ("tablet", False, None), ("table", 2, False)]
    assert watched.cluster is not None


@pytest.mark.row("S0.57")
def test_reader_keeps_committed_version_of_catalog():
    catalog = with_table()
    table = catalog.require("t")
    kept = table.record.SerializeToString(), catalog.tablets_of(table.id)
    bytes_of = [t.record.SerializeToString() for t in kept[1]]
    wanted = drop_table.operation(pb.DropTableRequest(name="t"), 5)
    plan = wanted.plan(catalog)
    draft = catalog.draft(plan)
    assert queries.describe(catalog, _none(), catalog.require("t")).ready
    assert catalog.require("t") is table, "a draft is not visible"
    catalog.publish(draft)
    assert catalog.named("t") is None
    assert table.record.SerializeToString() == kept[0], "an earlier read is unchanged"
    assert [t.record.SerializeToString() for t in kept[1]] == bytes_of
    assert catalog.table(TableId(table.id)) is not table
    assert catalog.tablet(TabletId(kept[1][0].id)) is not kept[1][0]


def _none():
    return TServers(1)


@pytest.mark.row("S0.15")
def test_map_pages_are_bounded_and_report_remaining_count():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        for name in "vwxyz":
            await masters.create(leader, name)

        async def part(**more):
            request = pb.InspectMasterRequest(maps=True, **more)
            answer = await masters.ask(leader, methods.INSPECT_MASTER, request)
            return json.loads(answer.maps)

        whole = await part()
        assert whole["more"] == {}
        first = await part(limit=2)
        assert list(first["names"]) == ["v", "w"]
        assert {k: first["more"][k] for k in ("tables", "names", "tablets", "tservers")} == {
            "tables": 3, "names": 3, "tablets": 3, "tservers": 1,
        }  # fmt: skip
        assert [len(first[k]) for k in ("tables", "tablets", "tservers")] == [2, 2, 2]
        parts = [await part(limit=2, offset=n) for n in (0, 2, 4)]
        assert "tablets" not in parts[-1]["more"]
        assert {k: v for p in parts for k, v in p["tablets"].items()} == whole["tablets"]
        assert list((await part(limit=2, offset=99))["tables"]) == []
        page = masters.master(leader).pages()["/tablets"]()
        assert {row[0]: row[2] for row in page.rows} == {
            tablet: shown["state"] for tablet, shown in whole["tablets"].items()
        }
        assert {row[1] for row in page.rows} == set("vwxyz")
        bare = await masters.ask(leader, methods.INSPECT_MASTER, pb.InspectMasterRequest())
        assert bare.maps == "", "maps are returned on request only"

    with_masters(work)


def test_executed_operations_in_memory_are_those_of_the_records():
    """A leader of many alterations remembers as many operations of a table as its record does."""
    catalog = with_table()
    for number in range(1, alter_table.MAX_OPERATIONS + 3):
        put(catalog, altered(catalog, "t", ("set_owner", f"owner {number}"), sequence=number))
    known = catalog.executed.listed()
    assert sorted(n for _, n in known["alter"]) == [*range(3, alter_table.MAX_OPERATIONS + 3)]
    assert known == loaded(rows_of(catalog)).executed.listed()
    for number in (1001, 1003):
        operation = pb.OperationId(client=b"c" * 16, sequence=number)
        (table,) = catalog.every_table()
        dropped = pb.DropTableRequest(id=table.id, reserve_seconds=60, operation=operation)
        put(catalog, drop_table.operation(dropped, 0))
        operation = pb.OperationId(client=b"c" * 16, sequence=number + 1)
        recalled = pb.RecallTableRequest(id=table.id, operation=operation)
        put(catalog, recall_table.operation(recalled))
    known = catalog.executed.listed()
    assert [n for _, n in known["drop"]] == [1003]
    assert known == loaded(rows_of(catalog)).executed.listed()
    assert drop_table.executed(catalog, pb.OperationId(client=b"c" * 16, sequence=1001))
