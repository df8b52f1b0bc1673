"""Light start-up: modules loaded by `import nyala` and by `nyala --help`."""

import subprocess
import sys

import pytest

HEAVY_IMPORT = ("numba", "duckdb", "pandas", "polars")
HEAVY_HELP = ("pyarrow", "grpc", "numba", "duckdb", "numpy", "pandas", "pyspark")


def loaded(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after some code."""
    tail = "\nimport sys\nprint('\\n'.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_nyala_loads_no_heavy_modules():
    assert not loaded("import nyala") & {*HEAVY_IMPORT, "pyarrow", "grpc"}


def test_client_attribute_loads_no_kernels_or_query_engines():
    assert not loaded("import nyala\nnyala.connect; nyala.Hash; nyala.Table") & set(HEAVY_IMPORT)


@pytest.mark.parametrize("words", [["--help"], ["table", "--help"], ["version"]])
def test_help_loads_no_heavy_modules(words):
    code = f"""
import contextlib, io, sys
sys.argv = ["nyala", *{words!r}]
from nyala.cli.main import app
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    app()
"""
    assert not loaded(code) & set(HEAVY_HELP)
