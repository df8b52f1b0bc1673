"""Every form of predicate, pushed down: the rows of a model, in memory, on disk, merged and compressed."""

import random
from typing import Any

import pytest

from nyala.common.expressions.where import parse
from nyala.tablet.files import columns
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver

Row = dict[str, Any]
FORMS: list[tuple[str, Any]] = [
    ("k = 7", lambda r: r["k"] == 7),
    ("a < 5", lambda r: r["a"] is not None and r["a"] < 5),
    ("a <= 5", lambda r: r["a"] is not None and r["a"] <= 5),
    ("k > 30", lambda r: r["k"] > 30),
    ("a >= 9", lambda r: r["a"] is not None and r["a"] >= 9),
    ("a <> 3", lambda r: r["a"] is not None and r["a"] != 3),
    ("k in (3, 5, 99, -1)", lambda r: r["k"] in (3, 5)),
    ("a is null", lambda r: r["a"] is None),
    ("s is not null", lambda r: r["s"] is not None),
    ("s like 'ab%'", lambda r: r["s"] is not None and r["s"].startswith("ab")),
    ("not s like 'ab%'", lambda r: r["s"] is not None and not r["s"].startswith("ab")),
    ("not a in (1, 2)", lambda r: r["a"] is not None and r["a"] not in (1, 2)),
    ("k between 10 and 20 and a > 4", lambda r: 10 <= r["k"] <= 20 and (r["a"] or 0) > 4),
    ("k < 4 or (a = 6 and s is null)", lambda r: r["k"] < 4 or (r["a"] == 6 and r["s"] is None)),
    ("not (k < 20 or a is null)", lambda r: r["k"] >= 20 and r["a"] is not None),
    ("k > 10 and k < 5", lambda r: False),
]


def some_rows(rng: random.Random, keys: list[int]) -> list[Row]:
    texts = [None, "", "a", "ab", "abc", "b"]
    return [{"k": k, "a": rng.choice([None, *range(11)]), "s": rng.choice(texts)} for k in keys]


@pytest.mark.row("A5")
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("state", ["memory", "flushed", "merged"])
def test_scan_and_count_return_matching_rows_at_present_and_past_times(
    tmp_path, state, compression, monkeypatch
):
    monkeypatch.setattr(columns, "BLOCK_ROWS", 8)  # many blocks, of which some are skipped
    monkeypatch.setattr(columns, "COMPRESSED_ROWS", 4)
    rng = random.Random(state + compression)
    driver = Driver(str(tmp_path / "t"), compression=compression)
    model: dict[int, Row] = {}
    past: dict[int, Row] = {}
    then = 0
    for step in range(6):
        rows = some_rows(rng, sorted(rng.sample(range(40), 20)))
        driver.write(RowOp.UPSERT, rows)
        deleted = sorted(rng.sample(sorted(model), min(5, len(model))))
        driver.write(RowOp.DELETE_IGNORE, [{"k": k} for k in deleted], ["k"])
        model |= {r["k"]: r for r in rows}
        model = {k: r for k, r in model.items() if k not in deleted}
        if step == 3:
            past, then = dict(model), driver.now
        if state != "memory":
            driver.flush()
    if state == "merged":
        driver.compact()
    view = driver.tablet.view()
    for text, keep in FORMS:
        where = parse(text, INT_KEY)
        for at, rows_then in ((driver.now, model), (then, past)):
            expected = [r for _, r in sorted(rows_then.items()) if keep(r)]
            assert driver.rows(at, where=where, ordered=True) == expected, text
            found = driver.rows(at, where=where, columns=driver.ids("s", "k"))
            assert sorted(r["k"] for r in found) == [r["k"] for r in expected], text
            assert view.count(at, where) == len(expected), text


@pytest.mark.row("A5")
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_blocks_without_matching_rows_are_not_read(tmp_path, compression, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK_ROWS", 10)
    monkeypatch.setattr(columns, "COMPRESSED_ROWS", 10)
    driver = Driver(str(tmp_path / "t"), compression=compression)
    rows = [{"k": k, "a": None if 40 <= k < 50 else 2 * k, "s": f"{k:03}"} for k in range(100)]
    driver.write(RowOp.INSERT, rows)
    driver.flush()
    driver.reopen()
    read: list[int] = []
    real = columns.ColumnReader.column

    def noted(self, chunk, column):
        read.append(chunk)
        return real(self, chunk, column)

    monkeypatch.setattr(columns.ColumnReader, "column", noted)
    view = driver.tablet.view()
    for where, blocks, found in [
        ("a >= 50 and a <= 60", {2, 3}, 6),
        ("a = 118", {5}, 1),
        ("a in (0, 1, 198)", {0, 9}, 2),
        ("s like '07%'", {7}, 10),
        ("a < 20 or s >= '095'", {0, *range(1, 10)}, 15),  # neither column alone excludes the rows
        ("a is null", set(range(10)), 10),  # nulls are known of a file, not of its blocks
        ("a > 500", set(), 0),
    ]:
        read.clear()
        assert view.count(driver.now, parse(where, driver.schema)) == found, where
        assert set(read) == blocks, where
