"""Every type as a column and in a key, in every storage and compression; too large values."""

import itertools
import struct
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import Compare, IsNull
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.common.schema import Schema, from_arrow
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.write.row_checks import MAX_KEY_BYTES
from tests.unit.tablet.support.tablet_support import Driver, message

COMPRESSIONS = ["none", "lz4", "zstd"]
STAGES = ["memory", "flushed", "merged", "reopened", "replayed"]


def whole(bits: int) -> list[int]:
    return [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]


def digits(precision: int, scale: int) -> list[Decimal]:
    with localcontext(prec=76):
        most = (Decimal(10) ** precision - 1).scaleb(-scale)
        return [-most, Decimal(-1).scaleb(-scale), Decimal(0), Decimal(1).scaleb(-scale), most]


FLOATS = [float("-inf"), -1.5, -0.0, 0.0, 2.0**-126, 3.0, float("inf"), float("nan")]
TEXTS = ["", "\0", "\0\0", "a", "a\0", "a\0b", "aé", "b", "é", "€", "𝄞", "\U0010ffff", "z" * 300]
BYTES = [
    b"",
    b"\0",
    b"\0\0",
    b"\0\xff",
    b"a",
    b"a\0",
    b"b",
    b"\xfe",
    b"\xff",
    b"\xff\0",
    b"\xff" * 99,
]
KEY_TYPES: dict[pa.DataType, list[Any]] = {  # values in key order, ends included
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.decimal128(1, 0): digits(1, 0),
    pa.decimal128(9, 4): digits(9, 4),
    pa.decimal128(18, 18): digits(18, 18),
    pa.decimal128(38, 0): digits(38, 0),
    pa.decimal128(38, 10): digits(38, 10),
    pa.string(): sorted(TEXTS, key=str.encode),
    pa.binary(): sorted(BYTES),
    pa.date32(): whole(32),
    pa.timestamp("us"): whole(64),
    pa.timestamp("us", "UTC"): whole(64),
}
TYPES = {**KEY_TYPES, pa.bool_(): [False, True], pa.float32(): FLOATS, pa.float64(): FLOATS}


def array(kind: pa.DataType, values) -> pa.Array:
    if pa.types.is_date(kind) or pa.types.is_timestamp(
        kind
    ):  # Python supports years 1 to 9999 only
        whole_type = pa.int32() if pa.types.is_date(kind) else pa.int64()
        return pa.array(values, whole_type).view(kind)
    return pa.array(values, kind)


def plain(column: pa.ChunkedArray | pa.Array) -> Any:
    """Return values that compare as their bits do."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_floating(kind):
        return [None if v is None else struct.pack("<d", v) for v in column.to_pylist()]
    return column.to_pylist()


def write(driver: Driver, op: RowOp, columns: dict[str, pa.Array]) -> tuple[int, list[Any]]:
    batch = pa.RecordBatch.from_pydict(columns)
    ids = tuple(driver.schema.column(n).id for n in columns)
    data = replicated_ops.encode(WriteOp(op, driver.schema.version, ids, False, message(batch)))
    return replicated_ops.decode_result(driver.tablet.apply([driver.entry(data)])[0])


def bring(driver: Driver, stage: str) -> None:
    if stage == "replayed":
        driver.reopen()
    elif stage != "memory":
        driver.flush()
        if stage == "merged":
            driver.compact()
        elif stage == "reopened":
            driver.reopen()


def scanned(driver: Driver, **kw) -> dict[str, list[Any]]:
    batches = list(driver.tablet.view().scan(driver.now, ordered=True, **kw))
    for batch in batches:
        batch.validate(full=True)
    if not batches:
        return {}
    table = pa.Table.from_batches(batches)
    assert table.schema.types == [driver.schema.column(n).type for n in table.schema.names]
    return {n: plain(table.column(n)) for n in table.schema.names}


# ---- as columns -------------------------------------------------------------------------------------

WIDE = from_arrow(
    pa.schema([("k", pa.int64()), *((f"c{n}", t) for n, t in enumerate(TYPES))]), ["k"]
)
ROWS = 2 * max(map(len, TYPES.values()))


def wide(first: int) -> dict[str, pa.Array]:
    """Rows with all values of all types, one null among them in each column; `first` shifts them."""
    columns = {"k": pa.array(range(ROWS), pa.int64())}
    for n, (kind, values) in enumerate(TYPES.items()):
        column = [values[(first + n + i) % len(values)] for i in range(ROWS)]
        column[(first + n) % ROWS] = None
        columns[f"c{n}"] = array(kind, column)
    return columns


@pytest.mark.row("A1", "A15")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_type_round_trips(tmp_path, compression, stage):
    driver = Driver(str(tmp_path / "t"), WIDE, compression=compression)
    first, second = wide(0), wide(3)
    assert write(driver, RowOp.INSERT, first) == (ROWS, [])
    at = driver.now
    bring(driver, stage)
    some = {n: c.slice(0, ROWS // 2) for n, c in second.items()}
    assert write(driver, RowOp.UPSERT, some) == (ROWS // 2, [])
    bring(driver, stage)
    old = {n: plain(c) for n, c in first.items()}
    new = {n: plain(second[n].slice(0, ROWS // 2)) + v[ROWS // 2 :] for n, v in old.items()}
    assert scanned(driver) == new
    before = pa.Table.from_batches(driver.tablet.view().scan(at, ordered=True))
    assert {n: plain(before.column(n)) for n in old} == old
    keys = pa.record_batch([pa.array([5, ROWS - 1, 0])], ["k"])
    found = driver.tablet.view().get(driver.now, keys)
    assert {n: plain(found.column(n)) for n in new} == {
        n: [v[5], v[ROWS - 1], v[0]] for n, v in new.items()
    }
    feed = pa.Table.from_batches(driver.tablet.view().changes(at, driver.now))
    assert {n: plain(feed.column(n)) for n in new} == {n: v[: ROWS // 2] for n, v in new.items()}


@pytest.mark.row("A1")
@pytest.mark.parametrize("stage", ["memory", "flushed"])
def test_every_type_is_filtered_in_its_order(tmp_path, stage):
    driver = Driver(str(tmp_path / "t"), WIDE)
    columns = wide(0)
    write(driver, RowOp.INSERT, columns)
    bring(driver, stage)
    view = driver.tablet.view()
    for n, (kind, values) in enumerate(TYPES.items()):
        column, name = driver.schema.column(f"c{n}").id, f"c{n}"
        given = columns[name].to_pylist() if not _is_time(kind) else plain(columns[name])
        assert view.count(driver.now, IsNull(column)) == 1
        for value in values[:: max(1, len(values) // 3)]:
            literal = array(kind, [value])[0]
            for sign, holds in ((Sign.LE, lambda v, w: v <= w), (Sign.EQ, lambda v, w: v == w)):
                where = Compare(column, sign, literal)
                expected = sum(1 for v in given if v is not None and holds(v, value))
                assert view.count(driver.now, where) == expected, (kind, sign, value)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


@pytest.mark.row("A2")
@pytest.mark.parametrize("stage", STAGES)
def test_defaults_and_nulls_of_every_type(tmp_path, stage):
    """An absent column is its default or null in a new row and stays in an old one; a given null is null."""
    fields = [(f"c{n}", t) for n, t in enumerate(TYPES)]
    plains = {f"c{n}": array(t, v)[-2] for n, (t, v) in enumerate(TYPES.items())}
    schema = from_arrow(pa.schema([("k", pa.int64()), *fields]), ["k"], defaults=plains)
    driver = Driver(str(tmp_path / "t"), schema)
    write(driver, RowOp.INSERT, {"k": pa.array([0, 1])})
    bring(driver, stage)
    nulls = {n: pa.nulls(1, t) for n, t in fields}
    write(driver, RowOp.UPSERT, {"k": pa.array([1]), **nulls})
    write(driver, RowOp.INSERT, {"k": pa.array([2]), **nulls})
    write(driver, RowOp.UPSERT, {"k": pa.array([0]), "c0": pa.array([7], pa.int8())})
    write(driver, RowOp.INSERT, {"k": pa.array([3])})  # beside rows in memory that have no defaults
    bring(driver, stage)
    defaults = {n: plain(pa.array([v], v.type))[0] for n, v in plains.items()}
    rows = scanned(driver)
    assert {n: v[0] for n, v in rows.items()} == {"k": 0, **defaults, "c0": 7}
    assert {n: v[3] for n, v in rows.items()} == {"k": 3, **defaults}
    assert [{v[i] for n, v in rows.items() if n != "k"} for i in (1, 2)] == [{None}, {None}]


# ---- in keys ----------------------------------------------------------------------------------------


def keyed(*kinds: pa.DataType) -> Schema:
    names = [f"k{n}" for n in range(len(kinds))]
    fields = [("v", pa.int64()), *zip(names, kinds, strict=True)]
    return from_arrow(pa.schema(fields), names)


@pytest.mark.row("A1", "A2")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_key_of_every_type_is_unique_and_ordered(tmp_path, kind, stage):
    driver = Driver(str(tmp_path / "t"), keyed(kind))
    ordered = KEY_TYPES[kind]
    count = len(ordered)
    shuffled = [ordered[i * 7 % count if count % 7 else i] for i in range(count)]
    values = pa.array(range(count), pa.int64())
    assert write(driver, RowOp.INSERT, {"k0": array(kind, shuffled), "v": values}) == (count, [])
    bring(driver, stage)
    _, errors = write(driver, RowOp.INSERT, {"k0": array(kind, ordered)})
    assert [e.code for e in errors] == ["already_present"] * count
    assert write(driver, RowOp.DELETE, {"k0": array(kind, ordered[1:2])}) == (1, [])
    bring(driver, stage)
    left = [ordered[0], *ordered[2:]]
    expected = plain(array(kind, left))
    assert scanned(driver)["k0"] == expected
    key = driver.schema.column("k0")
    literal = array(kind, ordered[2:3])[0]
    assert scanned(driver, where=Compare(key.id, Sign.GE, literal))["k0"] == expected[1:]
    assert scanned(driver, where=Compare(key.id, Sign.LT, literal))["k0"] == expected[:1]
    asked = pa.record_batch([array(kind, ordered)], ["k0"])
    found = driver.tablet.view().get(driver.now, asked)
    assert found.column("_row").to_pylist() == [0, *range(2, count)]


@pytest.mark.row("A2")
@pytest.mark.parametrize("stage", STAGES)
def test_key_of_several_columns_is_ordered_lexicographically(tmp_path, stage):
    kinds = (pa.string(), pa.binary(), pa.decimal128(38, 10), pa.date32(), pa.string())
    driver = Driver(str(tmp_path / "t"), keyed(*kinds))
    parts = [KEY_TYPES[k][:: max(1, len(KEY_TYPES[k]) // 4)] for k in kinds]
    ordered = list(itertools.product(*parts))
    shuffled = ordered[::2][::-1] + ordered[1::2]
    columns = {f"k{n}": array(kind, [row[n] for row in shuffled]) for n, kind in enumerate(kinds)}
    for begin in range(0, len(shuffled), 100):
        some = {n: c.slice(begin, 100) for n, c in columns.items()}
        assert not write(driver, RowOp.INSERT, some)[1]
        if begin % 300 == 0:
            bring(driver, stage)
    rows = scanned(driver)
    assert list(zip(*(rows[f"k{n}"] for n in range(len(kinds))), strict=True)) == ordered


@pytest.mark.row("A1", "A2")
@pytest.mark.parametrize("kind", [pa.bool_(), pa.float32(), pa.float64()], ids=str)
def test_invalid_key_types_are_refused(kind):
    with pytest.raises(InvalidArgument, match="cannot be part of the primary key"):
        keyed(pa.int64(), kind)


@pytest.mark.row("A15")
def test_compression_option_reduces_file_size(tmp_path):
    rows = {
        "k": pa.array(range(5000), pa.int64()),
        "s": pa.array([f"host-{i % 7}.example.org" for i in range(5000)]),
        "n": pa.array([i // 3 for i in range(5000)], pa.int64()),
    }
    schema = from_arrow(pa.schema([(n, c.type) for n, c in rows.items()]), ["k"])
    sizes = []
    for compression in COMPRESSIONS:
        driver = Driver(str(tmp_path / compression), schema, compression=compression)
        write(driver, RowOp.INSERT, rows)
        driver.flush()
        [data] = [n for n in driver.files.list(driver.directory) if n.endswith(".dat")]
        sizes.append(driver.files.size(f"{driver.directory}/{data}"))
        driver.reopen()
        assert driver.tablet.info.options == {"compression": compression}
        assert scanned(driver) == {n: plain(c) for n, c in rows.items()}
    assert sizes[2] < sizes[1] < sizes[0] / 2
    with pytest.raises(InvalidArgument, match="choose one of none, lz4, zstd"):
        Driver(str(tmp_path / "other"), schema, compression="snappy")


# ---- limits -----------------------------------------------------------------------------------------


@pytest.mark.row("A2")
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_keys_and_cells_up_to_their_limits(tmp_path, kind):
    schema = from_arrow(pa.schema([("a", kind), ("b", kind), ("v", kind)]), ["a", "b"])
    driver = Driver(str(tmp_path / "t"), schema)
    separator = 2  # after all but the last column of a key
    most = MAX_KEY_BYTES - separator - 1
    keys, cells = [1, most, most + 1, 1], [MAX_CELL_BYTES, 0, 0, MAX_CELL_BYTES + 1]
    columns = {
        "a": array(kind, [b"x" * n if kind == pa.binary() else "x" * n for n in keys]),
        "b": array(
            kind,
            [b"y" if kind == pa.binary() else "y"] * 3 + [b"z" if kind == pa.binary() else "z"],
        ),
        "v": array(kind, [b"v" * n if kind == pa.binary() else "v" * n for n in cells]),
    }
    count, errors = write(driver, RowOp.UPSERT, columns)
    assert (count, [(e.row, e.code) for e in errors]) == (2, [(2, "too_large"), (3, "too_large")])
    assert "the key" in errors[0].message
    assert "'v'" in errors[1].message
    for stage in STAGES:
        bring(driver, stage)
        rows = scanned(driver)
        assert sorted(map(len, rows["a"])) == [1, most]
        assert sorted(map(len, rows["v"])) == [0, MAX_CELL_BYTES]
