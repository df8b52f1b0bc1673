"""Tables of a mode's test, and commands that end with all their processes."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from tests.spark.modes.exercise import ROWS, SETTINGS
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
LIMIT_S = 900
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
Started = Callable[..., AbstractContextManager[subprocess.Popen[str]]]
PARTS = nyala.Partition(hash=[nyala.Hash(["k"], 4)])


@pytest.fixture
def tables(client):
    """Create the tables of the exercise; drop all tables afterwards."""
    source = client.create_table("from_rows", SCHEMA, ["k"], PARTS, replicas=1)
    source.insert([{"k": k, "v": k, "s": f"{k}"} for k in range(ROWS)]).raise_for_errors()
    for name in ("to_rows", "streamed"):
        client.create_table(name, SCHEMA, ["k"], PARTS, replicas=1)
    yield source, client.table("to_rows")
    for name in client.tables():
        client.drop_table(name)


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(masters: str) -> dict[str, str]:
    """Return variables with which programs of this machine find Python, nyala, masters and loopback."""
    bin_folder = str(Path(sys.executable).parent)
    paths = [str(ROOT / "src"), str(ROOT)]
    return os.environ | {
        "NYALA_MASTERS": masters, "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost",
    }  # fmt: skip


@pytest.fixture
def started(cluster, tmp_path) -> Started:
    """Start a command in an empty folder, in a session of its own; kill what is left of it at the end."""

    @contextmanager
    def start(*command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        log = tmp_path / f"{Path(command[0]).name}.log"
        with log.open("a") as errors:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment(cluster.masters) | more, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    return start


def connect_server(
    stack: ExitStack, started: Started, folder: Path, master: str = "local[2]"
) -> tuple[str, subprocess.Popen[str]]:
    """Start a server of Spark Connect; return its address, as `session` takes it, and its process.

    Args:
        stack: ends it.
        started: the fixture.
        folder: where its log is.
        master: where the server runs its tasks.
    """
    port = free_port()
    settings = {
        **SETTINGS, "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port), "spark.sql.connect.logTrace": "false",
    }  # fmt: skip
    words = [w for name, value in settings.items() for w in ("--conf", f"{name}={value}")]
    command = ("spark-submit", "--master", master, "--class", SERVER, *words)
    server = stack.enter_context(started(*command))

    def ready() -> bool:
        assert server.poll() is None, (folder / "spark-submit.log").read_text()[-4000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(ready, "the server of Spark Connect answers")
    return f"sc://127.0.0.1:{port}", server


@pytest.fixture
def run(started, tmp_path) -> Callable[..., str]:
    """Run a command to its end; return what it prints."""

    def to_end(*command: str, **more: str) -> str:
        with started(*command, **more) as process:
            printed, _ = process.communicate(timeout=LIMIT_S)
            log = (tmp_path / f"{Path(command[0]).name}.log").read_text()
            assert process.returncode == 0, f"{printed[-3000:]}\n{log[-8000:]}"
            return str(printed)

    return to_end
