"""Wrong arguments of calls are refused with nyala's own error, before anything is sent."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nyala.client.alter import Alter
from nyala.client.client import Client, connect
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientOptions
from nyala.client.hold import ttl_ms
from nyala.client.read.read_spec import names_of, scan_spec
from nyala.client.scan_token import ScanToken
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp, to_datetime
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.schema import from_arrow
from nyala.wire.proto import nyala_pb2 as pb

NO_CONNECTION: Any = None
WRONG: Any = None
LONE_SURROGATE = "\ud800"
ARROW = pa.schema([("k", pa.int64()), ("v", pa.string()), ("op", pa.string())])
MADE = from_arrow(ARROW, ["k"])
OPENED = OpenTable(TableId("i"), "t", MADE, PartitionSchema(), 3, {})


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": "1000"},
        {"timeout_ms": None},
        {"timeout_ms": float("nan")},
        {"timeout_ms": float("inf")},
        {"timeout_ms": True},
        {"timeout_ms": 0},
        {"timeout_ms": 1 << 31},
        {"batch_rows": 1.5},
        {"batch_bytes": "1"},
        {"scan_batch_rows": -1},
        {"scan_batch_bytes": 1 << 70},
        {"scan_ahead_bytes": -1},
        {"scan_ahead_bytes": 1.5},
        {"write_ahead_bytes": "64 MiB"},
        {"since": -1},
        {"since": "now"},
        {"client_id": "x" * 16},
        {"client_id": 16},
        {"masters": 5},
        {"masters": b"127.0.0.1:7051"},
        {"masters": LONE_SURROGATE + ":1"},
    ],
    ids=str,
)
def test_connect_refuses_wrong_option(options):
    with pytest.raises(InvalidArgument):
        connect(**{"masters": "127.0.0.1:1", **options})


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.create_table(LONE_SURROGATE, ARROW, ["k"]),
        lambda c: c.create_table(5, ARROW, ["k"]),
        lambda c: c.create_table("t", ARROW, None),
        lambda c: c.create_table("t", ARROW, ["k"], immutable="v"),
        lambda c: c.create_table("t", ARROW, ["k"], options={5: 1}),
        lambda c: c.create_table("t", ARROW, ["k"], options={"compression": LONE_SURROGATE}),
        lambda c: c.create_table("t", ARROW, ["k"], comment=LONE_SURROGATE),
        lambda c: c.table(LONE_SURROGATE),
        lambda c: c.table(None),
        lambda c: c.describe(None),
        lambda c: c.drop_table(LONE_SURROGATE),
        lambda c: c.drop_table("t", reserve_seconds=1 << 70),
        lambda c: c.recall_table(None),
        lambda c: c.recall_table("i", LONE_SURROGATE),
        lambda c: c.sql(None),
    ],
)
def test_client_refuses_wrong_argument(call):
    with pytest.raises(InvalidArgument):
        call(Client(NO_CONNECTION))


@pytest.mark.parametrize(
    "step",
    [
        lambda a: a.add_column(None, pa.int8()),
        lambda a: a.add_column(LONE_SURROGATE, pa.int8()),
        lambda a: a.add_column("n", "int64"),
        lambda a: a.drop_column(None),
        lambda a: a.rename_column("v", None),
        lambda a: a.set_default(None, "x"),
        lambda a: a.allow_nulls(5),
        lambda a: a.set_comment(None),
        lambda a: a.rename(LONE_SURROGATE),
        lambda a: a.rename(None),
        lambda a: a.set_owner(LONE_SURROGATE),
        lambda a: a.set_options(None),
        lambda a: a.set_options({5: 1}),
    ],
)
def test_alteration_refuses_wrong_argument(step):
    with pytest.raises(InvalidArgument):
        step(Alter(NO_CONNECTION, OPENED))


@pytest.mark.parametrize(
    "call",
    [
        lambda: names_of(MADE, WRONG or 5),  # type: ignore[arg-type]
        lambda: names_of(MADE, [["k"]]),  # type: ignore[list-item]
        lambda: names_of(MADE, iter(())),  # type: ignore[arg-type]
        lambda: scan_spec(MADE, None, None, None, 1 << 63, False, "snapshot", None),
        lambda: scan_spec(MADE, None, None, None, None, "v", "snapshot", None),  # type: ignore[arg-type]
        lambda: ttl_ms("1h"),  # type: ignore[arg-type]
        lambda: ttl_ms(WRONG),
        lambda: ScanToken.parse(WRONG),
        lambda: as_stamp(np.array([1, 2])),  # type: ignore[arg-type]
        lambda: Table(NO_CONNECTION, OPENED).write([{"k": 1, "op": "upsert"}], op_column="op"),
    ],
)
def test_read_or_write_refuses_wrong_argument(call):
    with pytest.raises(InvalidArgument):
        call()


@pytest.mark.parametrize(
    "columns",
    [["v", "k"], ("v", "k"), iter(["v", "k"]), np.array(["v", "k"]), pd.Index(["v", "k"])],
    ids=["list", "tuple", "iterator", "array", "index"],
)
def test_columns_may_come_from_any_iterable(columns):
    assert names_of(MADE, columns) == ("v", "k")


def test_time_may_come_from_a_frame():
    assert as_stamp(np.int64(7)) == 7  # type: ignore[arg-type]


def test_datetime_before_2001_is_no_unix_time_by_mistake():
    assert to_datetime(as_stamp(datetime(1990, 1, 1, tzinfo=UTC))).year == 1990


@pytest.mark.parametrize("timeout_ms", [1500, 1500.0, 1500.7])
def test_timeout_with_a_fraction_is_sent_as_a_whole_number(monkeypatch, timeout_ms):
    given: list[ClientOptions] = []
    monkeypatch.setattr(
        "nyala.client.client.Connection", lambda masters, options: given.append(options)
    )
    connect("m:1", timeout_ms=timeout_ms)
    token = pb.ScanToken(timeout_ms=given[0].timeout_ms)  # refuses a float
    assert token.timeout_ms == 1500
