"""Copies and moves of replicas: beside a raw Flight read, beside a writer, and after the loss of a server."""

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

import nyala
from benchmarks.moves import SMALL, Writer, move_repeatedly, repair_after_kill
from benchmarks.report import Report
from nyala.env.env import system_env
from nyala.env.loop_thread import LoopThread
from nyala.env.rpc import Method
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb

MB = 1_000_000
SIZE_MB, QUICK_MB, BATCH = 1000, 60, 10_000
ROW_BYTES = 208
"""Bytes of a row: a key and an incompressible text."""
THROTTLE_BYTES = 32 * MB
SETTLE_S = 5
BUSY_MB = 300
HEALED_MB, QUICK_HEALED_MB = (100, 1000, 5000), (20,)
WORKING = ("STARTING", "FILES", "LOG", "INSTALLING")


class Copier:
    """Sends orders of copies, as an operator's tool does.

    Args:
        cluster: cluster of four tablet servers.
    """

    def __init__(self, cluster: MiniCluster) -> None:
        self._cluster = cluster
        self._loop = LoopThread("copier")
        self._rpc = self._loop.run(self._make())

    async def _make(self) -> GrpcRpc:
        rpc = GrpcRpc()
        system_env(rpc)
        return rpc

    def ask(self, name: str, method: Method, request: object):  # type: ignore[no-untyped-def]
        """Return a server's answer to a request."""
        address = self._cluster.address(name)
        return self._loop.run(self._rpc.call(address, method, request, timeout_ms=10_000))

    def copy(self, table: str, look: Callable[[], None]) -> pb.CopyProgress:
        """Copy a table's only tablet to the server without a replica of it."""
        (tablet, leader), *_ = self._cluster.leaders(table).items()
        return self.copy_tablet(tablet, leader, look)

    def copy_tablet(self, tablet: str, leader: str, look: Callable[[], None]) -> pb.CopyProgress:
        """Copy a tablet to the server that has no replica of it.

        Args:
            tablet: id of the tablet.
            leader: name of the server that leads it.
            look: called between two looks at the progress.
        """
        servers = [n for n in self._cluster.names if n.startswith("tserver")]
        everything = {
            n: self.ask(n, methods.LIST_TABLETS, pb.ListTabletsRequest()).tablets for n in servers
        }
        target = next(
            n for n in servers if all(t.report.tablet_id != tablet for t in everything[n])
        )
        source = self.ask(leader, methods.SERVER_INFO, pb.ServerInfoRequest())
        own = self.ask(target, methods.SERVER_INFO, pb.ServerInfoRequest())
        request = pb.StartCopyRequest(
            destination_uuid=own.uuid,
            cluster_id=own.cluster_id,
            tablet_id=tablet,
            source_uuid=source.uuid,
            source_address=source.address,
        )
        began = time.perf_counter()
        found = self.ask(target, methods.START_COPY, request).copy
        while found.stage in WORKING:
            look()
            status = pb.CopyStatusRequest(tablet_ids=[tablet])
            found = self.ask(target, methods.COPY_STATUS, status).copies[0]
        assert found.stage in ("WAITING", "DONE"), found
        found.elapsed_ms = round((time.perf_counter() - began) * 1000)
        return found


def _raw_flight(batches: list[pa.RecordBatch]) -> float:
    """Return the rate of a C++ Flight read in bytes per second."""
    table = pa.Table.from_batches(batches)

    class Server(fl.FlightServerBase):
        def do_get(self, context, ticket):  # type: ignore[no-untyped-def]
            return fl.RecordBatchStream(table)

    server = Server("grpc://127.0.0.1:0")
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    began = time.perf_counter()
    client.do_get(fl.Ticket(b"x")).read_all()
    rate = table.nbytes / (time.perf_counter() - began)
    server.shutdown()
    return rate


def _load(
    client: nyala.Client, name: str, size_mb: int, *, keep: bool = False
) -> list[pa.RecordBatch]:
    """Create a table of one tablet; return the written rows if they are to be kept."""
    table = client.create_table(name, pa.schema([("k", pa.int64()), ("text", pa.binary())]), ["k"])
    rng, written = np.random.default_rng(7), []
    for first in range(0, size_mb * MB // ROW_BYTES, BATCH):
        data = rng.bytes(200 * BATCH)
        offsets = np.arange(0, 200 * BATCH + 1, 200, dtype=np.int32)
        texts = pa.Array.from_buffers(
            pa.binary(), BATCH, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        keys = pa.array(np.arange(first, first + BATCH))
        batch = pa.record_batch([keys, texts], ["k", "text"])
        table.insert(batch).raise_for_errors()
        if keep:
            written.append(batch)
    return written


def _copied(report: Report, size_mb: int) -> None:
    """Copy without a throttle, as by default, and with one; without and beside a writer."""
    throttles: tuple[tuple[str, dict[str, str]], ...] = (
        ("no throttle", {"copy_busy_rate_bytes": "0"}),
        ("by default", {}),
        (f"{THROTTLE_BYTES // MB} MB/s", {"copy_rate_bytes": str(THROTTLE_BYTES)}),
    )
    for label, options in throttles:
        with (
            MiniCluster(tservers=4, options=options) as cluster,
            nyala.connect(cluster.masters) as client,
        ):
            copier = Copier(cluster)
            client.create_table("small", SMALL, ["k"])
            if not options:
                _alone(report, client, copier, size_mb)
            _load(client, "busy", min(size_mb, BUSY_MB))
            writer = Writer(cluster.masters)
            writer.start()
            time.sleep(SETTLE_S)
            before_ms = writer.take_p99_ms()
            done = copier.copy("busy", lambda: time.sleep(0.01))
            meanwhile = writer.take_p99_ms()
            writer.end()
            speed = (done.bytes_total + done.log_bytes) / done.elapsed_ms / 1000
            report.add(f"copy beside a writer, {label}", speed, "MB/s")
            report.add(f"p99 of one-row upserts before, {label}", before_ms, "ms")
            report.add(
                f"p99 of one-row upserts meanwhile, {label}", meanwhile, "ms",
                f"{meanwhile / before_ms:.1f}x of before",
            )  # fmt: skip


def _alone(report: Report, client: nyala.Client, copier: Copier, size_mb: int) -> None:
    written = _load(client, "quiet", size_mb, keep=True)
    wire = _raw_flight(written)
    del written
    report.add("raw Flight get of the same bytes (C++)", wire / MB, "MB/s", "the wire = 1")
    done = copier.copy("quiet", lambda: time.sleep(0.01))
    speed = (done.bytes_total + done.log_bytes) / done.elapsed_ms / 1000
    report.add(
        "copy, nothing else runs", speed, "MB/s",
        f"{speed * MB / wire:.2f}x of the wire", at_least=0.5 * wire / MB,
    )  # fmt: skip


def run(quick: bool = False) -> Report:
    """Run the benchmark."""
    size_mb = QUICK_MB if quick else SIZE_MB
    report = Report(
        "copy", f"one tablet of {size_mb} MB, 3 replicas, copied to a fourth server, synced"
    )
    with MiniCluster(tservers=4) as cluster:
        move_repeatedly(report, cluster, 3 if quick else 20)
    _copied(report, size_mb)
    by_hand = {"repair": "off"}  # else the masters add a replica to a group with a witness
    for each in QUICK_HEALED_MB if quick else HEALED_MB:
        with (
            MiniCluster(tservers=4, options=by_hand) as cluster,
            nyala.connect(cluster.masters) as client,
        ):
            _load(client, "big", each)
            repair_after_kill(report, cluster, each)
    return report
