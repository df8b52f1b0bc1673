"""Modules that a program loads which connects, looks rows up and writes: nothing heavy without use."""

import subprocess
import sys

import pytest

NEEDLESS = ("pandas", "prometheus_client", "http.server", "numba", "duckdb", "polars")
LOADED = f"\nimport sys\nprint([name for name in {NEEDLESS} if name in sys.modules])"
REFUSED = """
import nyala
try:
    nyala.connect("127.0.0.1:1", timeout_ms=10)
except nyala.errors.NyalaError:
    pass
"""


def needless_after(code: str) -> str:
    """Return the needless modules that a fresh interpreter has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", code + LOADED], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_connection_loads_neither_pandas_nor_metrics():
    assert needless_after(REFUSED) == "[]"


@pytest.mark.full
def test_frames_of_program_that_imported_pandas_first_are_recognised():
    arrow = "import pyarrow as pa\nassert pa.array(pandas.Series([None, 1])).null_count == 1"
    assert needless_after(f"import pandas\n{REFUSED}\n{arrow}") == "['pandas']"


CONVERT = """
import pyarrow as pa
from nyala.common.batches import to_batches
from nyala.common.ids import ColumnId
from nyala.common.schema import Column, Schema

schema = Schema((Column(ColumnId(1), "k", pa.int64(), False),), (ColumnId(1),))
for rows in ([{"k": 1}], [{"k": k} for k in range(100)]):
    to_batches(to_batches(rows, schema)[0], schema)
"""


def test_first_conversion_of_dicts_and_batches_loads_no_pandas():
    assert needless_after(CONVERT) == "[]"


@pytest.mark.full
def test_frames_of_program_that_imports_pandas_after_a_conversion_are_recognised():
    code = """
import pandas

assert pa.array(pandas.Series([None, 1])).null_count == 1
assert to_batches(pandas.DataFrame({"k": [7]}), schema)[0].column(0).to_pylist() == [7]
assert importlib.resources.files("pandas").is_dir()
"""
    assert needless_after(f"import importlib.resources\n{CONVERT}{code}") == "['pandas']"


@pytest.mark.full
def test_first_conversions_of_many_threads_do_not_disturb_each_other():
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import pyarrow as pa
from nyala.common.batches import to_batches
from nyala.common.ids import ColumnId
from nyala.common.schema import Column, Schema

schema = Schema((Column(ColumnId(1), "k", pa.int64(), False),), (ColumnId(1),))
assert "pandas" not in sys.modules
ready = Barrier(8)

def convert(number):
    ready.wait()
    import pandas
    return to_batches(pandas.DataFrame({"k": [number]}), schema)[0].column(0)[0].as_py()

with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(convert, range(8))) == list(range(8))
"""
    assert needless_after(code) == "['pandas']"
