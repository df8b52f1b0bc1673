"""A program that connects and looks one row up: what its process loads."""

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


@pytest.mark.full
def test_first_look_up_of_process_imports_no_pandas(cluster):
    with cluster.connect() as client:
        table = client.create_table(
            "cold", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"]
        )
        table.upsert([{"k": 7, "v": "seven"}])
        subprocess.run([sys.executable, "-c", CODE, cluster.masters], check=True)
