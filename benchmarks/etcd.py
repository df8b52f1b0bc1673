"""Three etcd nodes with their defaults (every write synced) and its own benchmark, where installed."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

from benchmarks.load import Rate
from nyala.wire.flight_data import varint

PROGRAM, BENCHMARK = "ETCD", "ETCD_BENCHMARK"
"""Environment variables with the paths of the programs; unset: `etcd` and `etcd-benchmark` on the PATH."""
MISSING = (
    "etcd was NOT measured: it is not on the PATH; install it (Debian: etcd-server), or use --etcd"
)
START_TIMEOUT_S = 20
NODES = 3


def program() -> str | None:
    """Return the path of etcd, if it is installed."""
    return shutil.which(os.environ.get(PROGRAM, "etcd"))


def benchmark() -> str | None:
    """Return the path of etcd's own benchmark (tools/benchmark of its source), if it is installed."""
    return shutil.which(os.environ.get(BENCHMARK, "etcd-benchmark"))


class Etcd:
    """A cluster on free ports in a temporary folder; a context manager."""

    def __init__(self, etcd: str) -> None:
        self._dir = tempfile.mkdtemp(prefix="nyala-bench-etcd-")
        ports = free_ports(2 * NODES)
        clients, peers = ports[:NODES], ports[NODES:]
        self.addresses = [f"127.0.0.1:{port}" for port in clients]
        initial = ",".join(f"n{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        self._running = [
            subprocess.Popen(
                [
                    etcd, "--name", f"n{n}", "--data-dir", f"{self._dir}/{n}", "--log-level", "error",
                    "--listen-client-urls", f"http://127.0.0.1:{clients[n]}",
                    "--advertise-client-urls", f"http://127.0.0.1:{clients[n]}",
                    "--listen-peer-urls", f"http://127.0.0.1:{peers[n]}",
                    "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers[n]}",
                    "--initial-cluster", initial, "--initial-cluster-state", "new",
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for n in range(NODES)
        ]  # fmt: skip

    def __enter__(self) -> "Etcd":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def leader(self) -> str:
        """Return the client address of the leader.

        Raises:
            RuntimeError: no node leads in time.
        """
        import grpc  # the clients' processes import their own

        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for address in self.addresses:
                with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(address) as channel:
                    status = channel.unary_unary("/etcdserverpb.Maintenance/Status")
                    facts = _varints(status(b"", timeout=1))
                    member_id = _varints(_field(status(b"", timeout=1), 1)).get(2)
                    if facts.get(4) and facts.get(4) == member_id:
                        return address
            time.sleep(0.1)
        raise RuntimeError("etcd has no leader")


def own_benchmark(tool: str, address: str, clients: int, puts: int) -> Rate:
    """Run etcd's own benchmark against its leader: puts of 256 bytes."""
    output = subprocess.run(
        [
            tool, "put", f"--endpoints={address}", f"--clients={clients}", f"--conns={clients}",
            f"--total={puts}", "--val-size=256", "--key-space-size=1000000", "--sequential-keys=false",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    found = re.search(r"Requests/sec:\s+([0-9.]+)", output)
    percents = {p: float(s) for p, s in re.findall(r"([0-9.]+)% in ([0-9.]+) secs", output)}
    if found is None:
        raise RuntimeError(f"etcd's benchmark failed: {output[-300:]}")
    return Rate(
        float(found.group(1)), 1000 * percents.get("50", 0.0), 1000 * percents.get("99", 0.0), 0
    )


def put_request(key: bytes, value: bytes) -> bytes:
    """Return an `etcdserverpb.PutRequest`: field 1 the key, field 2 the value."""
    return b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value


def _parse(raw: bytes) -> list[tuple[int, int | bytes]]:
    """Return (number, value) of the varint and length fields of a message."""
    found: list[tuple[int, int | bytes]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(raw):
        tag = number()
        value: int | bytes = number()
        if tag & 7 == 2:
            assert isinstance(value, int)
            value, at = raw[at : at + value], at + value
        found.append((tag >> 3, value))
    return found


def _varints(raw: bytes) -> dict[int, int]:
    return {n: v for n, v in _parse(raw) if isinstance(v, int)}


def _field(raw: bytes, number: int) -> bytes:
    return next((v for n, v in _parse(raw) if n == number and isinstance(v, bytes)), b"")


def free_ports(count: int) -> list[int]:
    """Return unused ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for one in held:
        one.close()
    return ports
