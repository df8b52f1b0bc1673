"""kudu-spark over a real Kudu cluster, for the same rows and jobs as `spark`.

`--kudu FOLDER` names Kudu (`kudu_cluster.py`); the folder holds the jar of kudu-spark too. `--kudu-spark
PYTHON` names the Python of an environment with `pyspark==3.5.*`, since there is no kudu-spark for Spark 4.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.kudu_cluster import Kudu, Programs

PYTHON = "KUDU_SPARK"
"""Environment variable with the path of the Python."""
TIMEOUT_S = 3600
KEPT = ("PATH", "HOME", "JAVA_HOME", "TMPDIR", "LANG", "LC_ALL")
"""Variables that the program gets; those of this Spark session are not for another version."""


def seconds(
    found: Programs,
    parquet: str,
    count: int,
    rounds: int,
    write_rounds: int,
    three: tuple[str, ...],
) -> dict[str, float]:
    """Return the median seconds of each job, by its name in `spark`.

    Args:
        found: Kudu's programs.
        parquet: folder with the rows to write.
        count: number of rows.
        rounds: number of times that each read is run after a first one, which is not counted.
        write_rounds: the same of the upsert.
        three: columns of the narrow read.

    Raises:
        RuntimeError: the jar or the Python is missing, or a job failed.
    """
    folder, python = os.environ["KUDU"], os.environ.get(PYTHON)
    jars = sorted(Path(folder).rglob("kudu-spark3*.jar"))
    if not jars or not python:
        raise RuntimeError(f"--kudu-spark PYTHON is needed, and a kudu-spark3 jar below {folder}")
    with Kudu(found) as kudu:
        kudu.order("create", "wide")
        asked = {
            "jar": str(jars[-1]), "masters": kudu.masters, "table": "wide", "parquet": parquet,
            "rounds": rounds, "write_rounds": write_rounds, "few": count // 100, "three": three,
        }  # fmt: skip
        environ = {k: os.environ[k] for k in KEPT if k in os.environ} | {"PYSPARK_PYTHON": python}
        done = subprocess.run(
            # -P: modules of this folder have names of Python's own
            [python, "-P", str(Path(__file__).with_name("spark_kudu_jobs.py"))],
            input=json.dumps(asked), env=environ, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        raise RuntimeError(f"the jobs of kudu-spark failed: exit status {done.returncode}")
    taken: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return taken
