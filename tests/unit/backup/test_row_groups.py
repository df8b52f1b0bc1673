"""Reading Parquet files whose rows are large in batches of limited memory."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nyala.backup import row_groups
from nyala.backup.row_groups import batches_of

SCHEMA = pa.schema([("k", pa.int64()), ("b", pa.binary())])
WIDE = 100_000


def written(path, groups, size=WIDE):
    """Write groups of so many rows, each with a cell of a size; return all rows."""
    first, tables = 0, [SCHEMA.empty_table()]
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for count in groups:
            keys = list(range(first, first + count))
            cells = [os.urandom(size) for _ in keys]
            tables.append(pa.table({"k": keys, "b": cells}, schema=SCHEMA))
            writer.write_table(tables[-1])
            first += count
    return pa.concat_tables(tables)


def test_batches_of_large_rows_have_few_of_them_and_all_rows_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(row_groups, "BATCH_BYTES", 5 * WIDE)
    rows = written(tmp_path / "a.parquet", [12, 3, 1])
    found = list(batches_of(tmp_path / "a.parquet"))
    keys = pa.concat_arrays([b.column(0) for b in batches_of(tmp_path / "a.parquet", ["k"])])
    assert max(b.nbytes for b in found) <= 6 * WIDE
    assert pa.Table.from_batches(found).equals(rows)
    assert keys.equals(rows.column("k").combine_chunks())


def test_one_row_above_the_limit_is_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(row_groups, "BATCH_BYTES", WIDE // 2)
    rows = written(tmp_path / "a.parquet", [2, 1])
    found = list(batches_of(tmp_path / "a.parquet"))
    assert [b.num_rows for b in found] == [1, 1, 1]
    assert pa.Table.from_batches(found).equals(rows)


def test_file_without_rows_has_no_rows(tmp_path):
    written(tmp_path / "a.parquet", [])
    assert sum(b.num_rows for b in batches_of(tmp_path / "a.parquet")) == 0


class CountedFile(io.FileIO):
    """A file that counts what is read of it.

    Attributes:
        largest: most bytes that were asked for at a time.
        total: bytes read.
    """

    largest = total = 0

    def read(self, size=-1, /):
        found = super().read(size)
        assert found is not None
        self.largest = max(self.largest, size if size >= 0 else len(found))
        self.total += len(found)
        return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_large_row_group_is_read_in_small_parts(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(row_groups, "STREAM_BYTES", 64 << 10)
    path, rows = tmp_path / "a.parquet", 400_000
    numbers = np.random.default_rng(1).integers(0, 2**62, (4, rows))
    table = pa.table({f"c{n}": column for n, column in enumerate(numbers)})
    pq.write_table(table, path, row_group_size=rows, use_dictionary=False, compression=compression)
    size = path.stat().st_size
    assert size > 10 << 20
    with CountedFile(path) as file:
        batches = batches_of(file)
        found = [next(batches)]
        assert file.total < size // 2, "the first batch needs little of the row group"
        found += batches
        assert file.largest <= 2 << 20, "a page and a part of the stream"
        assert not file.closed
    assert pa.Table.from_batches(found).equals(table)
