"""Reading Parquet files whose rows are large in batches of limited memory."""

import os

import pyarrow as pa
import pyarrow.parquet as pq

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
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        found = list(batches_of(file))
        keys = pa.concat_arrays([b.column(0) for b in batches_of(file, ["k"])])
    assert max(b.nbytes for b in found) <= 6 * WIDE
    assert pa.Table.from_batches(found).equals(rows)
    assert keys.equals(rows.column("k").combine_chunks())


def test_one_row_above_the_limit_is_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(row_groups, "BATCH_BYTES", WIDE // 2)
    rows = written(tmp_path / "a.parquet", [2, 1])
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        found = list(batches_of(file))
    assert [b.num_rows for b in found] == [1, 1, 1]
    assert pa.Table.from_batches(found).equals(rows)


def test_file_without_rows_has_no_rows(tmp_path):
    written(tmp_path / "a.parquet", [])
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert sum(b.num_rows for b in batches_of(file)) == 0
