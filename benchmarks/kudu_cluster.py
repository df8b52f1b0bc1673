"""A real Kudu cluster and its Java client, with Kudu's own programs and defaults.

The folder named by `KUDU` holds `bin/kudu`, `kudu-master` and `kudu-tserver` with their `lib`, and the
jars of the Java client in some subfolder. By default Kudu does not sync its log: a power failure may lose an
acknowledged row.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.etcd import free_ports

FOLDER = "KUDU"
"""Environment variable with the path of the folder."""
START_TIMEOUT_S = 60
ORDER_TIMEOUT_S = 300
SERVERS = 3
_COMMON = (
    "--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync",
    "--rpc_encryption=disabled", "--rpc_authentication=disabled", "--webserver_enabled=false",
    "--logtostderr",
)  # fmt: skip
"""Flags required on one machine without NTP and certificates; none affects the speed."""


class Programs:
    """Paths of Kudu's programs and jars.

    Raises:
        RuntimeError: something is missing below the folder.
    """

    def __init__(self, folder: str) -> None:
        root = Path(folder)
        tools = [p for p in sorted(root.rglob("bin/kudu")) if os.access(p, os.X_OK)]
        jars = sorted(root.rglob("kudu-client*.jar"))
        if not tools or not jars:
            raise RuntimeError(f"{folder} has no bin/kudu, or no kudu-client jar, below it")
        self.bin, self.jars = tools[0].parent, f"{jars[0].parent}/*"
        home = self.bin.parent
        self.env = {
            **os.environ, "LD_LIBRARY_PATH": f"{home}/lib", "SASL_PATH": f"{home}/lib/sasl2",
        }  # fmt: skip


def programs() -> Programs | None:
    """Return Kudu's paths, if the variable is set."""
    folder = os.environ.get(FOLDER)
    return Programs(folder) if folder else None


class Kudu:
    """Three masters and three tablet servers on free ports in a temporary folder; a context manager."""

    def __init__(self, found: Programs, *flags: str) -> None:
        """Start the cluster.

        Args:
            found: paths of its programs.
            flags: additional flags of the tablet servers.
        """
        self._found = found
        self._dir = tempfile.mkdtemp(prefix="nyala-bench-kudu-")
        ports = free_ports(2 * SERVERS)
        self.masters = ",".join(f"127.0.0.1:{port}" for port in ports[:SERVERS])
        self._java: subprocess.Popen[str] | None = None
        self._running = [self._start_master(n, port) for n, port in enumerate(ports[:SERVERS])] + [
            self._start("tserver", n, port, f"--tserver_master_addrs={self.masters}", *flags)
            for n, port in enumerate(ports[SERVERS:])
        ]

    def _start(self, role: str, number: int, port: int, *flags: str) -> "subprocess.Popen[bytes]":
        place = f"{self._dir}/{role}-{number}"
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/log", "wb") as log:
            return subprocess.Popen(
                [
                    str(self._found.bin / f"kudu-{role}"), *_COMMON, *flags,
                    f"--fs_wal_dir={place}/wal", f"--fs_data_dirs={place}/data",
                    f"--rpc_bind_addresses=127.0.0.1:{port}",
                ],
                env=self._found.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _start_master(self, number: int, port: int) -> "subprocess.Popen[bytes]":
        return self._start(
            "master", number, port, f"--master_addresses={self.masters}",
            "--max_create_tablets_per_ts=2000",
        )  # fmt: skip

    def leader_master(self) -> int:
        """Return the number of the leader master."""
        words = ("master", "list", self.masters, "-columns=rpc-addresses,role", "-format=csv")
        output = self._tool(*words, timeout_s=10)
        address = next(line for line in output.splitlines() if line.endswith("LEADER")).split(",")[
            0
        ]
        return self.masters.split(",").index(address)

    def kill_master(self, number: int) -> None:
        """`kill -9` a master."""
        self._running[number].kill()
        self._running[number].wait()

    def start_master(self, number: int) -> None:
        """Start a master that was killed, and wait until it is a member again."""
        port = int(self.masters.split(",")[number].rpartition(":")[2])
        self._running[number] = self._start_master(number, port)
        self._wait()

    def __enter__(self) -> "Kudu":
        try:
            self._wait()
            self._java = self._client()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self._java, *self._running]:
            if process is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.SubprocessError):
                words = ("tserver", "list", self.masters, "-columns=rpc-addresses")
                if self._tool(*words, timeout_s=10).count("127.0.0.1:") >= SERVERS:
                    return
            time.sleep(0.2)
        raise RuntimeError("Kudu's servers did not come up")

    def _tool(self, *words: str, timeout_s: float) -> str:
        output = subprocess.run(
            [str(self._found.bin / "kudu"), *words],
            env=self._found.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=True,
        )  # fmt: skip
        return output.stdout + output.stderr

    def _client(self) -> "subprocess.Popen[str]":
        source = Path(__file__).with_name("KuduWide.java")
        subprocess.run(
            ["javac", "-cp", self._found.jars, "-d", self._dir, str(source)],
            check=True,
            timeout=120,
        )
        started = subprocess.Popen(
            [
                "java", "-Xmx2g", "--add-opens", "java.base/java.nio=ALL-UNNAMED",
                "-Dio.netty.tryReflectionSetAccessible=true",
                "-cp", f"{self._dir}:{self._found.jars}", "KuduWide", self.masters,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            bufsize=1,
        )  # fmt: skip
        assert started.stdout is not None
        if started.stdout.readline().strip() != "ready":
            raise RuntimeError("Kudu's Java client did not start")
        return started

    def order(self, *words: object) -> list[float]:
        """Send an order to the Java client (see `KuduWide.java`); return the numbers that it prints.

        Raises:
            RuntimeError: the order failed, or did not end within `ORDER_TIMEOUT_S`.
        """
        java = self._java
        assert java is not None, "the cluster is not started"
        assert java.stdin is not None, "its input is a pipe"
        assert java.stdout is not None, "its output is a pipe"
        java.stdin.write(" ".join(map(str, words)) + "\n")
        java.stdin.flush()
        limit = threading.Timer(ORDER_TIMEOUT_S, java.kill)
        limit.start()
        answer = java.stdout.readline()
        limit.cancel()
        if not answer.strip():
            raise RuntimeError(f"Kudu's Java client failed at: {words}")
        return [float(word) for word in answer.split()]

    def disk_bytes(self, table: str) -> int:
        """Return the bytes of a table according to its statistics."""
        output = self._tool("table", "statistics", self.masters, table, timeout_s=ORDER_TIMEOUT_S)
        found = re.search(r"on disk size: (\d+)", output)
        if found is None:
            raise RuntimeError(f"Kudu's statistics failed: {output[-300:]}")
        return int(found.group(1))

    def load(self, threads: int, rows: int) -> float:
        """Run Kudu's own C++ load generator with its defaults; return rows per second.

        Args:
            threads: number of threads, each with its own client.
            rows: number of rows of each thread.
        """
        output = self._tool(
            "perf", "loadgen", self.masters, f"-num_threads={threads}",
            f"-num_rows_per_thread={rows}", "-table_num_replicas=3", timeout_s=ORDER_TIMEOUT_S,
        )  # fmt: skip
        found = re.search(r"time total:\s*([0-9.e+]+)\s*ms", output)
        if found is None:
            raise RuntimeError(f"Kudu's load generator failed: {output[-300:]}")
        return threads * rows / float(found.group(1)) * 1000
