"""Representations of a client's objects in a notebook, and messages for misspelt arguments."""

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.alter import Alter
from nyala.client.client import Client
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.read.read_spec import ReadSpec
from nyala.client.results import WriteResult, errors_table
from nyala.client.scan import Scan
from nyala.client.sql.query import run_sql
from nyala.client.table import Table
from nyala.common import addresses
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp, stamp_of_text
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.schema import from_arrow

NO_CONNECTION: Any = None
FIELDS = [("k", pa.int64()), *((f"c{n}", pa.string()) for n in range(30))]
STAMP: Any = as_stamp
MADE = from_arrow(pa.schema(FIELDS), ["k"])
OPENED = OpenTable(TableId("i"), "t", MADE, PartitionSchema(), 3, {})


def test_table_repr_shows_columns_and_key():
    lines = repr(Table(NO_CONNECTION, OPENED)).splitlines()
    assert lines[:3] == ["<nyala.Table 't', 0 tablets>", "  k: int64 key", "  c0: string"]
    assert lines[-1] == "  ..."
    assert len(lines) == 22


def test_scan_repr_states_that_nothing_was_read():
    class Connection:
        class core:
            @staticmethod
            def plan(table: OpenTable, spec: ReadSpec) -> None:
                """Return no plan: nothing is read."""

    connection: Any = Connection()
    shown = repr(Scan(connection, OPENED, ReadSpec(columns=("k", "c0"))))
    assert shown.startswith("<nyala.Scan of 't': k, c0; nothing is read before to_arrow()")


def test_write_result_repr_states_rows_without_effect():
    assert repr(WriteResult(2, errors_table([]), 7)) == "<nyala.WriteResult: 2 rows, at 7>"
    shown = repr(WriteResult(1, errors_table([(3, "null_key", "a key column is null")]), 7))
    assert "1 row, and 1 WITHOUT EFFECT: row 3: a key column is null" in shown
    assert "raise_for_errors()" in shown


def test_alteration_repr_shows_its_steps():
    made = Alter(NO_CONNECTION, OPENED)
    assert repr(made) == "<nyala.Alter of table 't': no steps yet; commit() applies them>"
    made.add_column("w", pa.int64()).drop_column("c1").rename_column("w", "x")
    made.set_options({"max_bytes": 10**9}).rename("u").set_replicas(5).set_comment("a", "x")
    assert repr(made) == (
        "<nyala.Alter of table 't': add_column('w', int64), drop_column('c1'), rename_column('w', 'x'), "
        "set_options({'max_bytes': 1000000000}), rename('u'), set_replicas(5), set_comment('a', 'x'); "
        "commit() applies them>"
    )


def test_client_repr_shows_masters():
    class Masters:
        known = ("a:1", "b:2")

    class Connection:
        closed = False

        class core:
            masters = Masters

    connection: Any = Connection()
    assert repr(Client(connection)) == "<nyala.Client of a:1,b:2>"
    connection.closed = True
    assert repr(Client(connection)) == "<nyala.Client of a:1,b:2 (closed)>"


@pytest.mark.parametrize(
    ("slip", "text", "then"),
    [
        (lambda: addresses.parse("http://127.0.0.1:7051"), "is a URL", "omit http://"),
        (lambda: STAMP("2026-01-01"), "not str", "pass client.now()"),
        (lambda: STAMP(1.5), "not float", "pass client.now()"),
        (lambda: as_stamp(datetime(2026, 1, 1)), "no time zone", "pass an aware one"),
        (lambda: stamp_of_text("2026-01-31"), "has no zone", "in UTC 2026-01-31T00:00:00+00:00"),
        (lambda: stamp_of_text("\uff11"), "is no time", "with its zone, such as"),
        (lambda: as_stamp(1 << 63), "1970 to 2041", "pass one of these"),
        (lambda: as_stamp(1_795_935_000), "number of seconds since 1970", "fromtimestamp"),
        (lambda: as_stamp(1_795_935_000_000), "number of milliseconds", "fromtimestamp"),
        (lambda: as_stamp(1_795_935_000_000_000), "number of microseconds", "fromtimestamp"),
        (lambda: as_stamp(1_795_935_000_000_000_000), "time of 1983", "fromtimestamp"),
        (
            lambda: run_sql("insert into t values (1)", NO_CONNECTION),
            "that reads",
            "write rows with",
        ),
        (lambda: run_sql("select 1; select 2", NO_CONNECTION), "one query", "write rows with"),
        (lambda: run_sql("selec 1", NO_CONNECTION), "syntax error", "correct the query"),
        (lambda: run_sql("select nope", NO_CONNECTION), "nope", "correct the query"),
    ],
)
def test_misuse_error_states_a_remedy(slip, text, then):
    with pytest.raises(InvalidArgument) as raised:
        slip()
    assert text in raised.value.message
    assert then in raised.value.message
