"""Tables altered, dropped and recalled in a cluster of real processes: Python, command line, pages, kills."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.common.errors import InvalidArgument, NotFound, OutcomeUnknown, TimedOut
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster import ddl_kills
from tests.cluster.support.direct import Direct, refusal
from tests.waiting import wait_until, within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RANGES = nyala.Partition(range=nyala.Range(["k"], [(0, 10), (10, 20)]))


def run_nyala(cluster, *words, status=0):
    done = CliRunner().invoke(app, [*words, "--masters", cluster.masters])
    assert done.exit_code == status, (words, done.output, done.exception)
    return done.output


def test_table_altered_by_command_line_is_readable_from_python(cluster):
    with cluster.connect() as client:
        table = client.create_table("ddl", SCHEMA, ["k"], RANGES)
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        run_nyala(
            cluster, "table", "add_column", "ddl", "n", "int32", "--default", "7", "--not-null"
        )
        run_nyala(cluster, "table", "rename_column", "ddl", "v", "w")
        run_nyala(cluster, "table", "column_set_default", "ddl", "n", "8")
        run_nyala(cluster, "table", "column_set_comment", "ddl", "n", "a number")
        run_nyala(cluster, "table", "set_comment", "ddl", "about")
        run_nyala(cluster, "table", "set_owner", "ddl", "me")
        run_nyala(cluster, "table", "set_extra_config", "ddl", "history_max_age_s", "60")
        run_nyala(cluster, "table", "add_range_partition", "ddl", "20", "[30]")
        run_nyala(cluster, "table", "rename_table", "ddl", "ddl2")
        assert table.get({"k": 25}) is None
        assert len(table.tablets()) == 3
        table = client.table("ddl2")
        table.upsert([{"k": 25, "w": 5}]).raise_for_errors()
        early = client.table("ddl2")
        assert early.get({"k": 25}) == {"k": 25, "w": 5, "n": 8}
        rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"])
        assert rows == [{"k": 1, "w": 1, "n": 7}, {"k": 25, "w": 5, "n": 8}]
        assert table.definition.column("n").comment == "a number"
        assert client.describe("ddl2").options == {"history_max_age_s": "60"}
        assert "unknown column type" in run_nyala(
            cluster, "table", "add_column", "ddl2", "x", "int65", status=2
        )
        run_nyala(cluster, "table", "drop_range_partition", "ddl2", "0", "5", status=5)
        run_nyala(cluster, "table", "drop_range_partition", "ddl2", "0", "10")
        assert len(early.tablets()) == 2, "positions of tablets have changed"
        assert early.get({"k": 25}) == {"k": 25, "w": 5, "n": 8}
        assert early.get({"k": 5}) is None
        table.alter().drop_column("n").allow_nulls("w").commit()
        assert table.scan().to_arrow().to_pylist() == [{"k": 25, "w": 5}]
        with pytest.raises(InvalidArgument, match="part of the primary key"):
            table.alter().drop_column("k")
        with pytest.raises(InvalidArgument, match="overlaps"):
            table.alter().add_range(15, 40).commit()
        run_nyala(cluster, "table", "drop", "ddl2", "--yes", "--reserve-seconds", "600")
        dropped = json.loads(run_nyala(cluster, "table", "list", "--dropped", "--format", "json"))
        assert [d["table"] for d in dropped] == ["ddl2"]
        assert client.dropped_tables() == {table.id: "ddl2"}
        with pytest.raises(NotFound):
            client.table("ddl2")
        run_nyala(cluster, "table", "recall", table.id, "--name", "ddl3")
        assert client.table("ddl3").count() == 1
        client.drop_table("ddl3")


def test_invalid_create_or_replace_is_refused_without_changes(cluster):
    cluster.wait_healthy()  # the leader knows all three servers
    with cluster.connect() as client:
        with pytest.raises(
            InvalidArgument, match="5 replicas need 5 live tablet servers, and 3 are"
        ):
            client.create_table("too_many", SCHEMA, ["k"], replicas=5)
        assert "too_many" not in client.tables()
        table = client.create_table("works", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        (tablet,) = json.loads(run_nyala(cluster, "ops", "--maps"))["tablets_of"][table.id]
        replace = ("tablet", "unsafe_replace_tablet", tablet)
        assert "can recover the tablet from its survivors" in run_nyala(
            cluster, *replace, "--yes", status=2
        )
        look = [*replace, "--dry-run", "--format", "json", "--masters", cluster.masters]

        def shown_by_all():
            seen = json.loads(CliRunner().invoke(app, look).stdout)
            assert (seen["changed"], seen["state"]) == (False, "RUNNING")
            return len(seen["shown_by"]) == 3

        wait_until(shown_by_all, "all three servers have reported their replica")
        assert table.count() == 1
        client.drop_table("works")
        run_nyala(cluster, *replace, "--yes", status=5)


@pytest.mark.row("S0.10", "S0.13", "S0.15")
def test_master_memory_maps_are_inspectable(cluster):
    with cluster.connect() as client:
        table = client.create_table("looked_at", SCHEMA, ["k"])
        client.drop_table("looked_at")
        other = client.create_table("looked_at", SCHEMA, ["k"])
        maps = json.loads(run_nyala(cluster, "ops", "--maps"))
        assert maps["tables"][table.id]["state"] == "REMOVED"
        assert maps["names"]["looked_at"] == other.id
        assert maps["tables"][other.id]["state"] == "RUNNING"
        (tablet,) = maps["tablets_of"][other.id]
        assert maps["tablets"][tablet]["state"] == "RUNNING"
        (tablet_id,) = maps["tablets_of"][table.id]
        assert maps["tablets"][tablet_id]["state"] == "DELETED"
        assert len(maps["tservers"]) == 3

        def heard_of_all():
            server_maps = json.loads(run_nyala(cluster, "ops", "--maps"))["tservers"].values()
            return all(s["alive"] and s["full_in_term"] for s in server_maps)

        wait_until(heard_of_all, "every server has sent all it has in this term")
        ended = ("ops", "--format", "json")
        wait_until(
            lambda: json.loads(run_nyala(cluster, *ended)) == [], "no operation is under way"
        )
        leader = next(s for s in client.servers() if s.leader)
        for page, word in {
            "/catalog": "REMOVED",
            "/tablets": tablet,
            "/tservers": next(iter(maps["tservers"])),
            "/operations": "locks",
        }.items():
            with urllib.request.urlopen(
                f"http://{leader.web_address}{page}", timeout=within(60)
            ) as answer:
                assert word in answer.read().decode(), page
        client.drop_table("looked_at")


@pytest.mark.full
@pytest.mark.row("S0.30")
def test_leader_kills_during_definitions_lose_and_duplicate_none(cluster):
    """Ten of them; a hundred: ./run soak masters."""
    assert ddl_kills.run(cluster, 10, 77, prefix="kills") == 10


@pytest.mark.full
@pytest.mark.row("S0.18", "S0.86")
def test_resumed_leader_master_serves_no_outdated_catalog(cluster):
    """The paused leader gets requests while others lead, define tables and answer look-ups, and resumes."""
    with cluster.connect() as client, Direct() as direct:
        old = client.create_table("stopped", SCHEMA, ["k"])
        victim = cluster.leader_master()
        address = cluster.address(victim)
        calls = [
            (methods.LIST_TABLES, pb.ListTablesRequest()),
            (methods.DESCRIBE_TABLE, pb.DescribeTableRequest(name="stopped")),
            (methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=old.id)),
            (methods.DROP_TABLE, pb.DropTableRequest(name="stopped")),
        ]
        cluster.pause(victim)
        try:
            assert client.table("stopped").id == old.id, "another master answers the look-up"
            client.drop_table("stopped")
            new = client.create_table("stopped", SCHEMA, ["k"])
            with ThreadPoolExecutor(len(calls)) as pool:
                asked = [pool.submit(refusal, direct.ask, address, *call) for call in calls]
                wait_until(lambda: all(a.running() for a in asked), "calls are under way")
                cluster.resume(victim)
                answers = [a.result() for a in asked]
        finally:
            cluster.resume(victim)
        answers += [refusal(direct.ask, address, *call) for call in calls * 3]
        assert set(answers) <= {"NOT_LEADER", "TIMED_OUT", "UNAVAILABLE"}, answers
        assert client.table("stopped").id == new.id
        client.drop_table("stopped")
        cluster.wait_healthy()


def test_definitions_require_master_majority_and_lookups_do_not(cluster):
    """One of three masters runs: it serves reads within the staleness bound, and no definitions."""
    with cluster.connect() as client, cluster.connect(2_000) as with_short_timeout:
        table = client.create_table("alone", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        assert with_short_timeout.table("alone").id == table.id
        leader = cluster.leader_master()
        other = next(n for n in cluster.names if n.startswith("master") and n != leader)
        cluster.kill(other)
        cluster.kill(leader)
        try:
            with nyala.connect(cluster.masters, timeout_ms=20_000) as newcomer:
                assert newcomer.table("alone").get({"k": 1}) == {"k": 1, "v": 1}
                assert "alone" in newcomer.tables(max_age_ms=30_000)
            with pytest.raises((TimedOut, OutcomeUnknown)):
                with_short_timeout.drop_table("alone")
            with pytest.raises(TimedOut, match="no leader master answered"):
                with_short_timeout.tables()
        finally:
            cluster.start(other, wait=False)
            cluster.start(leader)
        if "alone" in client.tables():  # the unanswered drop may have taken effect since
            client.drop_table("alone")
