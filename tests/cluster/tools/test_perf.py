"""`nyala perf` on a real cluster: the load generator's tables, and its counts."""

import json

import pyarrow as pa
import pytest

from tests.unit.cli.support.verbs import nyala

pytestmark = [pytest.mark.full, pytest.mark.row("A13")]

ROWS = ("--threads", "2", "--rows-per-thread", "1500", "--batch-rows", "400", "--format", "json")


def perf(cluster, *words, status=0):
    """Run the command; return the row that it prints, and its messages."""
    done, out, err = nyala("perf", *words, "--masters", cluster.masters)
    assert done == status, (words, out, err)
    return json.loads(out)[0], err


def test_load_generator_makes_and_drops_its_own_table(cluster):
    row, _ = perf(cluster, "loadgen", *ROWS, "--run-scan", "--replicas", "1")
    assert (row["rows"], row["errors"], row["counted"]) == (3000, 0, 3000)
    assert row["rows_per_s"] > 0
    with cluster.connect() as client:
        assert not [name for name in client.tables() if name.startswith("loadgen_auto_")]


def test_kept_table_is_scanned_with_all_its_rows(cluster):
    row, said = perf(cluster, "loadgen", *ROWS, "--keep-auto-table", "--random", "--replicas", "1")
    assert row["table"] in said
    read, _ = perf(cluster, "table_scan", row["table"], "--format", "json")
    assert (read["rows"], read["tablets"]) == (row["rows"], 2)
    narrow, _ = perf(
        cluster, "table_scan", row["table"], "--columns", "key", "--where", "key < 0", "--format", "json"
    )  # fmt: skip
    assert narrow["rows"] == 0
    with cluster.connect() as client:
        client.drop_table(row["table"])


def test_named_table_is_filled_and_kept_and_existing_keys_are_errors(cluster):
    schema = pa.schema(
        [("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.float64())]
    )
    with cluster.connect() as client:
        table = client.create_table("loaded", schema, ["name"], replicas=1)
        first, _ = perf(cluster, "loadgen", "--table", "loaded", *ROWS, "--run-scan")
        assert (first["rows"], table.count()) == (3000, 3000)
        again, _ = perf(cluster, "loadgen", "--table", "loaded", *ROWS, "--seq-start", "2000",
                        "--run-scan")  # fmt: skip
        assert (again["rows"], again["errors"], table.count()) == (2000, 1000, 5000)
        client.drop_table("loaded")
    done, _, err = nyala("perf", "loadgen", "--table", "loaded", "--masters", cluster.masters)
    assert (done, "loaded" in err) == (5, True), "a table that is missing is not made"
