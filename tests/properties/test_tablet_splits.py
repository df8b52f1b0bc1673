"""Splits of scans by bytes, compared with the model: together they return all rows of any tablet."""

import random
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.schema import Column, Schema
from nyala.tablet.files.columns import ColumnReader
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.read import split_points
from nyala.tablet.read.view import split_keys
from nyala.tablet.rows.selection import ScanFilter
from tests.enough import enough
from tests.properties.support import tablet_steps as steps
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.tablet_model import Key, Row, exact
from tests.properties.support.tablet_rows import random_keys, random_predicate
from tests.properties.support.tablet_world import World, sizes
from tests.unit.tablet.support.tablet_support import INT_KEY, PAIR_KEY, Driver

KINDS = sorted({*steps.WRITING, *steps.FILING})
SIZES = [10, 100, 300, 1000, 5000, 1 << 40]
HOSTS = ["", "a", "a\0", "a\0b", "ab", "b"]
MANY: list[tuple[Schema | None, list[Key]]] = [
    (None, []),
    (None, []),
    (INT_KEY, [(k,) for k in range(-20, 30)]),
    (PAIR_KEY, [(host, n) for host in HOSTS for n in range(-3, 6)]),
]


def pieces_of(cuts: list[bytes]) -> list[KeyBounds]:
    """Return the bounds of the splits at these keys."""
    return [KeyBounds(b, e) for b, e in zip([b"", *cuts], [*cuts, None], strict=True)]


def check_pieces(world: World, chance: random.Random) -> int:
    """Split a scan, read each split in every way; return their number."""
    at, view = world.some_time(chance), world.driver.tablet.view()
    where = random_predicate(chance, world.schema) if chance.random() < 0.5 else None
    cuts = split_keys(view, ScanFilter(at, where), None, chance.choice(SIZES))
    assert cuts == sorted(set(cuts))
    state = sorted(world.model.state_at(at).items())
    expected = [
        world.model.shown(r)
        for _, r in state
        if where is None or evaluate_reference(where, r) is True
    ]
    found: list[Row] = []
    for within in pieces_of(cuts):
        batches = view.scan(at, None, where, ordered=True, batch_rows=3, within=within)
        piece = [r for b in batches for r in b.to_pylist()]
        found += piece
        names = world.model.key_names
        keys = [world.encoded(tuple(r[n] for n in names)) for r in piece]
        assert all(within.lower <= k and (within.upper is None or k < within.upper) for k in keys)
        plain = [r for b in view.scan(at, None, where, within=within) for r in b.to_pylist()]
        assert sorted(map(repr, exact(plain))) == sorted(map(repr, exact(piece)))
        assert view.count(at, where, within) == len(piece)
        if keys:  # a run interrupted after a row continues within its bounds
            row = chance.randrange(len(keys))
            after = KeyBounds(keys[row] + b"\0", within.upper)
            rest = view.scan(at, None, where, ordered=True, within=after)
            assert exact([r for b in rest for r in b.to_pylist()]) == exact(piece[row + 1 :])
    assert exact(found) == exact(expected)
    return len(cuts) + 1


@pytest.mark.row("A6")
@pytest.mark.parametrize("seed", range(12))
def test_splits_of_random_scans_return_rows_once_in_order(seed):
    chance, pieces = random.Random(seed), 0
    with sizes(small=seed % 3 != 0):
        schema, keys = MANY[seed % 4]
        world = World(seed, schema)
        world.keys = keys or random_keys(chance, world.schema, 60)
        for _ in range(12):
            world.write(chance, RowOp.UPSERT, count=len(world.keys) // 3)
            for _ in range(4):
                steps.run(world, chance.choice(KINDS), chance.randrange(1 << 32))
            pieces += check_pieces(world, chance)
    enough(pieces > (36 if keys else 12), f"{pieces} pieces")


ROWS = 60_000


def wide(directory: str, compression: str, rowsets: int) -> Driver:
    """A tablet of rows with random texts, in overlapping rowsets."""
    chance, driver = random.Random(7), Driver(directory, compression=compression)
    for part in range(rowsets):
        keys = range(part, ROWS, rowsets)
        texts = (chance.randbytes(20 if k < ROWS // 2 else 60).hex() for k in keys)
        rows = [{"k": k, "a": k, "s": s} for k, s in zip(keys, texts, strict=True)]
        assert driver.write(RowOp.INSERT, rows) == []
        driver.flush()
    return driver


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that records each block read from now on: its file and number."""
    read, original = [], ColumnReader.column

    def column(self: ColumnReader, chunk: int, wanted: Column) -> pa.Array:
        read.append((self, chunk))
        return original(self, chunk, wanted)

    monkeypatch.setattr(ColumnReader, "column", column)
    return read


def stored(driver: Driver, names: list[str]) -> int:
    """Return the bytes of some columns in the files."""
    chunks = [r.view().chunks for r in driver.disk_rowsets()]
    return sum(
        c.bytes_of(n, i)
        for c in chunks
        for n in range(len(c.starts) - 1)
        for i in driver.ids(*names)
    )


@pytest.mark.row("A6")
@pytest.mark.parametrize(("compression", "rowsets"), [("none", 1), ("none", 3), ("lz4", 3)])
def test_splits_have_requested_bytes_of_projected_columns(
    tmp_path, monkeypatch, compression, rowsets
):
    driver = wide(str(tmp_path / "t"), compression, rowsets)
    view, read = driver.tablet.view(), noted(monkeypatch)
    for names, count in ((["k", "a", "s"], 10), (["a"], 8), (["k", "s"], 25)):
        whole = stored(driver, names)
        cuts = split_keys(view, ScanFilter(driver.now), driver.ids(*names), whole // count)
        assert not read, "the split keys are found without reading a column"
        assert abs(len(cuts) + 1 - count) <= count // 4
        rows = [view.count(driver.now, None, piece) for piece in pieces_of(cuts)]
        assert sum(rows) == ROWS
        if names == ["a"]:  # cells of one size; the texts are not projected
            assert min(rows) > ROWS / count / 2
            assert max(rows) < ROWS / count * 1.5
        elif compression == "lz4":  # small blocks, so that short and long rows are distinguished
            assert rows[0] > 1.5 * rows[-2]
            assert max(rows) < 3 * ROWS / count
        read.clear()


@pytest.mark.row("A6")
def test_split_reads_only_its_blocks(tmp_path, monkeypatch):
    driver = wide(str(tmp_path / "t"), "lz4", 3)
    view, read = driver.tablet.view(), noted(monkeypatch)
    blocks = sum(len(r.view().chunks.starts) - 1 for r in driver.disk_rowsets())
    assert blocks >= 15
    ids = driver.ids("a")
    cuts = split_keys(view, ScanFilter(driver.now), ids, stored(driver, ["a"]) // 5)
    for within in pieces_of(cuts):
        for ordered in (False, True):
            read.clear()
            found = view.scan(driver.now, ids, ordered=ordered, within=within)
            assert sum(b.num_rows for b in found) > 0
            assert 3 <= len(set(read)) <= 3 * 3 < blocks


def test_memory_rows_are_split_and_later_rows_excluded(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, [{"k": k, "a": k, "s": "x" * 90} for k in range(100, 0, -1)])
    then, view = driver.now, driver.tablet.view()
    assert 8 <= len(split_keys(view, ScanFilter(then), None, 1100)) <= 10
    assert split_keys(view, ScanFilter(then - 1), None, 1100) == []
    assert split_keys(view, ScanFilter(then), [], 1) == []
    inner = split_keys(view, ScanFilter(then), None, 1100)[3:5]
    assert all(
        inner[0] < k < inner[1]
        for k in split_keys(view, ScanFilter(then, None, KeyBounds(*inner)), None, 100)
    )


def test_splits_without_upper_bound_are_refused_with_remedy(tmp_path, monkeypatch):
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, [{"k": k, "a": k, "s": "x" * 90} for k in range(100)])
    view = driver.tablet.view()
    monkeypatch.setattr(split_points, "MAX_PIECES", 10)
    with pytest.raises(
        InvalidArgument, match=r"at most 10: choose pieces of [0-9]+ bytes"
    ) as raised:
        split_keys(view, ScanFilter(driver.now), None, 7)
    enough = int(raised.value.message.split()[-4])
    assert split_keys(view, ScanFilter(driver.now), None, enough)
    for wrong in (0, -1):
        with pytest.raises(InvalidArgument, match="one byte at least"):
            split_keys(view, ScanFilter(driver.now), None, wrong)
