"""Executors of a cluster of Spark get the credentials of a secure cluster by `spark.executorEnv`."""

import re
from contextlib import ExitStack

import pytest

from tests.spark.modes import counted
from tests.spark.modes.conftest import free_port
from tests.spark.modes.exercise import ROWS
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]


@pytest.fixture
def master(started, tmp_path):
    """Start a standalone cluster of Spark whose worker knows no credentials; return its address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    home = tmp_path / "home"
    home.mkdir()
    unknown = {"HOME": str(home), "XDG_DATA_HOME": str(home), "TMPDIR": str(home)}
    deploy = "org.apache.spark.deploy"
    with ExitStack() as running:
        for words in (
            [f"{deploy}.master.Master", "--port", str(port)],
            [f"{deploy}.worker.Worker", address, "--cores", "1", "--memory", "1g", "-d", str(home)],
        ):
            command = ["spark-class", *words, "--host", "127.0.0.1", "--webui-port", "0"]
            running.enter_context(started(*command, **unknown))
        log = tmp_path / "spark-class.log"
        wait_until(
            lambda: (
                "Registered worker" in log.read_text()
                or "Successfully registered" in log.read_text()
            ),
            "the worker is registered",
        )
        yield address


def test_executors_need_the_variables_of_their_own(cluster, tables, master, run):
    variables = {n: v for n, v in cluster.environment.items() if n != "NYALA_MASTERS"}
    assert set(variables) == {"NYALA_CA", "NYALA_CERT", "NYALA_KEY"}
    own = [w for n, v in variables.items() for w in ("--conf", f"spark.executorEnv.{n}={v}")]
    command = ["spark-submit", "--master", master]
    assert f"rows {ROWS}" in run(*command, *own, counted.__file__)
    with pytest.raises(AssertionError, match=re.escape("NYALA_CA")):
        run(*command, counted.__file__)
