"""Invalid values by the public client to real servers: refused as a whole or by row; no server ends.

Also valid special shapes: dictionaries, chunks, slices, views, no rows.
"""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nyala.client import Table
from tests.cluster.support.direct import refusal

SCHEMA = pa.schema(
    [
        ("d", pa.decimal128(5, 2)), ("s", pa.string()), ("n", pa.int8()), ("b", pa.binary()),
        ("day", pa.date32()), ("at", pa.timestamp("us")), ("f", pa.float32()), ("y", pa.bool_()),
    ]
)  # fmt: skip
CENT = Decimal("0.01")
KEYS = {"d": pa.array([CENT], pa.decimal128(5, 2)), "s": ["x"]}
REFUSALS = ("SCHEMA_MISMATCH", "INVALID_ARGUMENT")


@pytest.fixture(scope="module")
def table(cluster) -> Iterator[Table]:
    with cluster.connect() as client:
        made: Table = client.create_table("values", SCHEMA, ["d", "s"])
        yield made


@pytest.fixture(autouse=True)
def nobody_dies(cluster, table) -> Iterator[None]:
    before = {n: cluster.running(n) for n in cluster.names}
    yield
    assert {n: cluster.running(n) for n in cluster.names} == before
    assert all(before.values())


def raw(offsets: list[int], data: bytes, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Keys whose strings have these buffers, valid or not: Arrow reads the bytes of a peer unchecked."""
    kind, rows = kind or pa.string(), len(offsets) - 1
    cents = pa.array([CENT] * rows, pa.decimal128(5, 2))
    words = pa.array(["\1" * len(data)] + [""] * (rows - 1), kind)
    good = pa.record_batch([cents, words], names=["d", "s"])
    message = bytearray(good.serialize())
    width = 8 if kind == pa.large_string() else 4
    for old, new in (
        (_packed(width, [0, *[len(data)] * rows]), _packed(width, offsets)),
        (b"\1" * len(data), data),
    ):
        at = message.rindex(old)
        message[at : at + len(old)] = new
    return pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), good.schema)


def _packed(width: int, numbers: list[int]) -> bytes:
    return b"".join(n.to_bytes(width, "little", signed=True) for n in numbers)


def one(**columns: Any) -> pa.Table:
    """One row with a key, unless it is given."""
    return pa.table({**KEYS, **columns})


def uuids() -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))


CANNOT_BE: dict[str, Any] = {
    "decimal_too_large": lambda: [{"d": Decimal("1000.00"), "s": "x"}],
    "decimal_too_fine": lambda: [{"d": Decimal("0.001"), "s": "x"}],
    "decimal_that_is_no_number": lambda: [{"d": Decimal("nan"), "s": "x"}],
    "wider_decimal": lambda: pa.table({"d": pa.array([Decimal(10**20)]), "s": ["x"]}),
    "decimal256": lambda: one(d=pa.array([Decimal(10**50)], pa.decimal256(60, 2))),
    "integer_out_of_range": lambda: one(n=pa.array([128], pa.int64())),
    "fraction_in_an_integer": lambda: one(n=[1.5]),
    "invalid_utf8": lambda: raw([0, 7], b"well\xc3\x28."),
    "invalid_utf8_in_binary": lambda: pa.table({"d": KEYS["d"], "s": [b"\xff\xfe"]}),
    "lone_surrogate": lambda: [{"d": CENT, "s": "\ud800"}],
    "offsets_beyond_the_buffer": lambda: raw([0, 4000], b"abcdefg"),
    "offsets_that_go_back": lambda: raw([0, 7, 1], b"abcdefg"),
    "negative_offset": lambda: raw([-8, 7], b"abcdefg"),
    "large_offsets_beyond_the_buffer": lambda: raw([0, 1 << 40], b"abcdefg", pa.large_string()),
    "timestamp_out_of_range": lambda: one(at=pa.array([10**15], pa.timestamp("s"))),
    "timestamp_too_fine": lambda: one(at=pa.array([1], pa.timestamp("ns"))),
    "timestamp_of_a_zone": lambda: one(at=pa.array([1], pa.timestamp("us", "Asia/Tokyo"))),
    "date_with_a_time": lambda: one(day=pa.array([1], pa.timestamp("ms"))),
    "float_out_of_range": lambda: one(f=pa.array([1e300], pa.float64())),
    "extension": lambda: one(b=uuids()),
    "list": lambda: one(n=[[1]]),
    "struct": lambda: one(s2=[{"x": 1}]).rename_columns(["d", "s", "b"]),
    "map": lambda: one(b=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))),
    "duration": lambda: one(at=pa.array([1], pa.duration("us"))),
    "duplicate_names": lambda: pa.table([KEYS["d"], ["x"], ["y"]], names=["d", "s", "s"]),
    "no_columns": lambda: pa.table({"v": [1]}).select([]),
    "half_a_key": lambda: pa.table({"s": ["x"]}),
    "unknown_column": lambda: one(other=[1]),
    "dictionary_index_beyond_its_values": lambda: pa.table(
        {"d": KEYS["d"], "s": pa.DictionaryArray.from_arrays(pa.array([7]), ["x"], safe=False)}
    ),
}  # fmt: skip


@pytest.mark.row("A1")
@pytest.mark.parametrize("name", CANNOT_BE)
def test_invalid_data_is_refused_and_writes_nothing(table, name):
    data = CANNOT_BE[name]()
    assert refusal(table.upsert, data) in REFUSALS
    assert table.scan().count() == 0


def test_oversized_keys_and_cells_are_row_errors(table):
    rows = [
        {"d": CENT, "s": "k" * 20_000, "b": b""}, {"d": CENT, "s": "cell", "b": b"b" * 70_000},
        {"d": CENT, "s": "well", "b": b"b" * 60_000}, {"d": CENT, "s": "k" * 16_000, "b": b""},
    ]  # fmt: skip
    result = table.upsert(rows)
    found = [(e["row"], e["code"]) for e in result.errors.to_pylist()]
    assert found == [(0, "too_large"), (1, "too_large")]
    assert "limit" in str(result.errors.to_pylist()[0]) or "larger" in str(
        result.errors.to_pylist()
    )
    assert sorted(len(r["s"]) for r in table.scan(["s"]).to_arrow().to_pylist()) == [4, 16_000]
    table.delete(rows[2:]).raise_for_errors()


def test_unusual_valid_data_is_accepted(table):
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    cents = pa.array([CENT, CENT * 2, CENT * 3], pa.decimal128(5, 2))
    table.upsert(pa.table({"d": cents, "s": words})).raise_for_errors()
    chunks = pa.chunked_array([["c"], [], ["d", "e"]])
    table.upsert(pa.table({"d": cents, "s": chunks})).raise_for_errors()
    sliced = pa.table({"d": cents, "s": ["x", "f", "y"], "y": [None, True, False]}).slice(1, 1)
    table.upsert(sliced).raise_for_errors()
    views = pa.table({"d": cents[:1], "s": pa.array(["g"], pa.string_view())})
    table.upsert(views).raise_for_errors()
    large = pa.table({"d": cents[:1], "s": pa.array(["h"], pa.large_string()), "f": [0.5]})
    table.upsert(large).raise_for_errors()
    exact = {"at": pa.array([5], pa.timestamp("s")), "n": pa.array([7], pa.int64()), "s": ["i"]}
    table.upsert(one(**exact)).raise_for_errors()
    assert table.upsert(sliced.slice(0, 0)).rows == 0
    assert table.upsert([]).rows == 0
    far = {"d": CENT, "s": "j", "day": date(9999, 12, 31), "at": datetime(1, 1, 1)}
    table.upsert([far]).raise_for_errors()
    found = {r["s"] + str(r["d"]): r for r in table.scan().to_arrow().to_pylist()}
    assert sorted(found) == [
        "a0.01", "a0.03", "b0.02", "c0.01", "d0.02", "e0.03", "f0.02", "g0.01", "h0.01", "i0.01", "j0.01",
    ]  # fmt: skip
    assert found["f0.02"]["y"] is True
    assert (found["i0.01"]["at"], found["i0.01"]["n"]) == (datetime(1970, 1, 1, 0, 0, 5), 7)
    assert (found["j0.01"]["day"], found["j0.01"]["at"]) == (far["day"], far["at"])
    table.delete(list(found.values())).raise_for_errors()
