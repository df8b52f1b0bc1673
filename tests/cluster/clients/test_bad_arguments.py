"""Invalid arguments of the client raise clear errors and change nothing."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument, NotFound, NyalaError, SchemaMismatch, TooLarge
from nyala.common.partitioning.partition_spec import Hash, Partition
from tests.cluster.support import bad_input
from tests.cluster.support.bad_input import SCHEMA
from tests.cluster.support.direct import refusal

client, table, direct = bad_input.client, bad_input.table, bad_input.direct
nothing_changed = bad_input.nothing_changed


def test_unknown_names_are_refused(client, table):
    with pytest.raises(NotFound, match=r"no table 'nothing'; the tables are: .*bad"):
        client.table("nothing")
    with pytest.raises(NotFound, match=r"no table 'bda'; did you mean 'bad'\? the tables are: "):
        client.table("bda")
    with pytest.raises(NotFound, match="nothing"):
        client.drop_table("nothing")
    with pytest.raises(NotFound, match="w"):
        table.scan(["k", "w"])
    with pytest.raises(SchemaMismatch, match="w"):
        table.upsert([{"k": 1, "w": 2}])
    with pytest.raises(NotFound, match="w"):
        table.scan(where="w = 3")
    with pytest.raises(NotFound, match="no table 'nothing'"):
        client.sql("select * from nothing")


def test_mismatched_types_and_values_are_refused(table):
    for wrong in (
        [{"k": "one", "v": "x"}],
        [{"k": 1.5, "v": "x"}],
        [{"k": 1, "x": "a float"}],
        [{"v": "no key"}],
        pa.table({"k": pa.array([2**63], pa.uint64()), "v": ["x"]}),
        pa.table({"k": [1], "v": [b"\xff\xfe"]}),
        pa.table({"k": [1], "x": [[1.0]]}),
        [],
    ):
        refused = refusal(lambda w=wrong: table.upsert(w).rows)
        assert refused in ("SCHEMA_MISMATCH", "INVALID_ARGUMENT", "0"), (wrong, refused)
    for wrong in (7, None, "rows", [1, 2], {"k": 1}):
        assert refusal(table.upsert, wrong) in ("INVALID_ARGUMENT", "SCHEMA_MISMATCH"), wrong


def test_invalid_rows_are_row_errors(table):
    result = table.insert(pa.table({"k": [5, None, 5000, 6], "v": ["a", "b", "c", "d"]}))
    codes = dict(zip(*(result.errors.column(n).to_pylist() for n in ("row", "code")), strict=True))
    assert codes == {0: "already_present", 1: "null_key", 2: "no_partition", 3: "already_present"}
    assert result.rows == 0
    assert table.update([{"k": 900, "v": "x"}]).errors.column("code").to_pylist() == ["not_found"]
    assert table.delete([{"k": 901}]).errors.column("code").to_pylist() == ["not_found"]
    mixed = [{"k": 902, "v": "x", "_op": "insert"}, {"k": 5, "v": "y", "_op": "insert"}]
    voided = table.write([mixed[1]], all_or_nothing=True)
    assert voided.errors.column("code").to_pylist() == ["already_present"]
    for op in ("explode", None, ""):
        with pytest.raises(InvalidArgument, match="ops are:"):
            table.write([{"k": 1, "_op": op}])


def test_invalid_definitions_are_refused(client):
    key = ["k"]
    cases = {
        "bad": ("ALREADY_PRESENT", (SCHEMA, key)),
        "": ("INVALID_ARGUMENT", (SCHEMA, key)),
        "a\x00b": ("INVALID_ARGUMENT", (SCHEMA, key)),
        "x" * 2000: ("INVALID_ARGUMENT", (SCHEMA, key)),
        "t1": ("INVALID_ARGUMENT", (SCHEMA, [])),
        "t2": ("INVALID_ARGUMENT", (SCHEMA, ["w"])),
        "t3": ("INVALID_ARGUMENT", (SCHEMA, ["x"])),
        "t4": ("INVALID_ARGUMENT", (SCHEMA, key, None, 2)),
        "t5": ("INVALID_ARGUMENT", (SCHEMA, key, None, 5)),
        "t6": ("INVALID_ARGUMENT", (SCHEMA, key, None, 0)),
        "t7": ("INVALID_ARGUMENT", (SCHEMA, key, Partition(hash=[Hash(["v"], 4)]))),
        "t8": ("INVALID_ARGUMENT", (SCHEMA, key, Partition(hash=[Hash(["k"], 100_000)]))),
        "t9": (
            "INVALID_ARGUMENT",
            (pa.schema([("k", pa.int64()), ("l", pa.list_(pa.int8()))]), key),
        ),
    }
    for name, (expected, words) in cases.items():
        code = refusal(lambda n=name, w=words: client.create_table(n, *w))
        assert code == expected, (name[:20], code)
    with pytest.raises(NyalaError):
        client.create_table("t10", SCHEMA, key, options={"no_such_option": "1"})
    assert [n for n in client.tables() if n.startswith(("t1", "t2", "x"))] == []


HOSTILE = (
    "", " ", "k", "k =", "= 3", "k = 3 or", "k = 'three'", "k = 3; drop table bad", "k = 3 -- '",
    "__import__('os').system('true')", "k in ()", "k in (" + "1," * 200_000 + "1)", "(" * 5_000,
    "not " * 5_000 + "k = 1", " or ".join(["k = 1"] * 20_000), "v like '%x'", "v like '", "k = 1e999",
    "k = 99999999999999999999999", "v = 'a\x00b'", "k between 1", "k = k", "x = nan", "\ud800 = 1",
    "k = 1 \N{RIGHT-TO-LEFT OVERRIDE} or 1=1", '"k', "k ~ 3", "k is", "case when k then 1 end",
)  # fmt: skip


@pytest.mark.parametrize("where", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_where_expressions_are_refused(table, where):
    """A `NyalaError` with a position, or rows, within the time limit."""
    answer = refusal(lambda: table.scan(["k"], where=where).to_arrow().num_rows)
    assert answer in ("INVALID_ARGUMENT", "NOT_FOUND", "TOO_LARGE") or answer.isdigit(), answer


def test_other_invalid_arguments_are_refused(client, table):
    calls: list[Callable[[], Any]] = [
        lambda: table.scan(limit=-1),
        lambda: table.scan(mode="sometime"),
        lambda: table.scan(at=1, mode="latest"),
        lambda: table.scan([]),
        lambda: table.scan(["k", "k"]),
        lambda: table.get({"k": None}),
        lambda: table.get({"v": 1}),
        lambda: table.changes(since=5, until=3),
        lambda: client.sql("drop table bad"),
        lambda: client.sql("select 1; select 2"),
        lambda: client.sql("select * from read_csv('/etc/passwd')"),
        lambda: client.sql("copy (select 1) to '/tmp/nyala-should-not-exist'"),
        lambda: table.scan(at=(1 << 63)).to_arrow(),
    ]
    answers = [refusal(call) for call in calls]
    codes = {"INVALID_ARGUMENT", "NOT_FOUND", "HISTORY_GONE", "SCHEMA_MISMATCH"}
    assert [(n, a) for n, a in enumerate(answers) if a not in codes] == []


def test_batch_over_byte_limit_is_refused(cluster, client, table):
    with pytest.raises((TooLarge, SchemaMismatch), match=r"limit|write_max_bytes|too"):
        table.upsert([{"k": 1, "v": "x" * (20 << 20)}])
