"""`nyala pipeline` where PySpark or Java is not installed."""

import os
import subprocess
import sys

import pytest

from tests.waiting import within

WITHOUT_SPARK = """
import sys

sys.modules["pyspark"] = None
sys.argv = ["nyala", "pipeline", *sys.argv[1:]]
from nyala.cli.main import main

main()
"""


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False,
        env={**os.environ, "NYALA_MASTERS": "127.0.0.1:1", **environ}, timeout=within(100),
    )  # fmt: skip


@pytest.mark.parametrize("words", [["import", "--help"], ["checksum", "t"], ["run", "a.py"]])
def test_commands_say_what_to_install_where_there_is_no_pyspark(words):
    done = run("-c", WITHOUT_SPARK, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "need PySpark (No module named 'pyspark" in done.stderr
    assert "pip install 'nyala[spark]', and Java 17 or newer" in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_are_listed_where_there_is_no_pyspark():
    done = run("-c", WITHOUT_SPARK, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("import", "Import CSV, JSON lines or Parquet files into a table.", "restore"):
        assert text in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("words", [["checksum", "t"], ["run", "program.py"]])
def test_commands_say_that_java_is_missing(tmp_path, words):
    program = tmp_path / "program.py"
    program.write_text(
        "from nyala.spark.pipelines import Pipeline\n\npipeline = Pipeline('p')\n\n"
        "@pipeline.step\ndef one(step):\n    return 1\n"
    )
    command = [str(program) if w == program.name else w for w in words]
    done = run("-m", "nyala", "pipeline", *command, JAVA_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "Spark needs Java, which did not start: install Java 17 or newer" in done.stderr
    assert "Traceback" not in done.stderr
