"""Modules that a process loads which connects and looks rows up, or writes some."""

import subprocess
import sys

import pyarrow as pa
import pytest

CODE = """
import sys
import nyala

with nyala.connect(sys.argv[1]) as client:
    assert client.table("cold").get({"k": 7}) == {"k": 7, "v": "seven"}
needless = ("pandas", "prometheus_client", "http.server", "numba", "duckdb", "polars")
assert not [name for name in needless if name in sys.modules]
"""

WRITES = """
import struct
import sys
import pyarrow as pa
import nyala

with nyala.connect(sys.argv[1]) as client:
    table = client.table("cold")
    table.upsert([{"k": 8, "v": "eight"}])
    table.upsert([{"k": k, "v": str(k)} for k in range(1000, 3000)])
    keys = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(struct.pack("2q", 5, 6))])
    table.upsert(pa.RecordBatch.from_arrays([keys, pa.nulls(2, pa.string())], names=["k", "v"]))
    table.delete([{"k": 8}])
    assert "pandas" not in sys.modules
    import pandas

    assert pa.array(pandas.Series([None, 1.0])).null_count == 1
    table.upsert(pandas.DataFrame({"k": [9], "v": ["nine"]}))
    assert table.get({"k": 9}) == {"k": 9, "v": "nine"}
"""


@pytest.mark.full
def test_first_look_up_and_first_writes_of_process_import_no_pandas(cluster):
    with cluster.connect() as client:
        table = client.create_table(
            "cold", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"]
        )
        table.upsert([{"k": 7, "v": "seven"}])
        subprocess.run([sys.executable, "-c", CODE, cluster.masters], check=True)
        subprocess.run([sys.executable, "-c", WRITES, cluster.masters], check=True)
