"""The catalog of a large cluster in one process: the master's own code over a real tablet, without servers.

Tablet servers are simulated: their reports go through the same operations as real ones.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from nyala.common.ids import CommittedOperation, OpId
from nyala.common.partitioning.partition import HashLevel, PartitionSchema
from nyala.common.schema import from_arrow
from nyala.env.env import system_env
from nyala.env.tasks import Lane
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.actions import Action
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.ddl import create_table, tablet_report
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import LeaderMemory, run
from nyala.master.tservers import TServers
from nyala.tablet.tablet import Tablet
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

SERVERS = 50
TERM = 1
TABLETS_EACH = 5
REPORT_BATCH = 1000
TIMEOUT_MS = 10_000
BATCH_BYTES = 16 << 20
SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.string())]), ["k"])
"""Three columns."""


class _Written:
    def __init__(self, result: bytes) -> None:
        self.result = result


class Alone:
    """A group of one member that applies at once to a real tablet, in place of a replica of the sys catalog.

    Attributes:
        payloads: sizes of the batches in bytes.
    """

    def __init__(self, tablet: Tablet) -> None:
        self.tablet = tablet
        self.payloads: list[int] = []

    async def write(self, payload: bytes, **_: Any) -> _Written:
        """Apply a batch."""
        self.payloads.append(len(payload))
        at = len(self.payloads)
        return _Written(self.tablet.apply([CommittedOperation(OpId(1, at), at * 1000, payload)])[0])

    async def read_point(self, _at: int | None, _timeout_ms: int) -> int:
        """Return the time of the last batch."""
        return len(self.payloads) * 1000


class Nobody:
    def enqueue(self, actions: Sequence[Action]) -> None:
        """Do nothing: no orders are sent."""


class Large:
    """A leader's catalog in memory, and its rows in a tablet on disk."""

    def __init__(self, tablet: Tablet) -> None:
        self.group = Alone(tablet)
        self.env = system_env(None)  # type: ignore[arg-type]
        self.rows = SysCatalog(
            self.env, self.group, tablet,
            client_id=bytes(16), timeout_ms=TIMEOUT_MS, max_batch_bytes=BATCH_BYTES,
        )  # fmt: skip
        self.rng = Random(7)
        self.infos = [server_info(f"{self.rng.getrandbits(128):032x}", n) for n in range(SERVERS)]
        self.catalog = Catalog()
        self.servers = TServers(1 << 60)
        self.now_us = 0

    @property
    def memory(self) -> LeaderMemory:
        """Return the context of operations."""
        return LeaderMemory(TERM, self.catalog, self.rows, Nobody(), Locks(), lambda: None)

    async def create(self, name: str, tablets: int) -> int:
        """Create a table; return the bytes of its batch."""
        plan_inputs = PlanInputs(self.infos, self.rng, 1, max(tablets, 1000), 3)
        await run(create_table.operation(request(name, tablets), plan_inputs), self.memory)
        return self.group.payloads[-1]

    async def fill(self, tables: int) -> None:
        """Create tables of `TABLETS_EACH` tablets, and take in reports of all their replicas."""
        for number in range(tables):
            await self.create(f"table_{number:06d}", TABLETS_EACH)
        await self.report_all()

    async def report_all(self) -> None:
        """Take in a full report of every server, as the leader of a third of its tablets."""
        reports: dict[str, list[pb.TabletReport]] = {info.uuid: [] for info in self.infos}
        for tablet in self.catalog.tablets():
            for server in tablet.members:
                reports[server].append(_report(tablet, leads=server == tablet.members[0]))
        for info in self.infos:
            await self.take(heartbeat(info, reports[info.uuid], full=True))

    async def take(self, request: pb.HeartbeatRequest) -> None:
        """Take in a report as the leader's heartbeat service does."""
        server = self.servers.record_heartbeat(request, self.now_us)
        reported = tablet_report.operations(
            self.catalog, server.uuid, request.tablets, REPORT_BATCH
        )
        for wanted in reported:
            await run(wanted, self.memory)
        self.servers.record_report(server, request, TERM)

    async def rebuilt(self) -> Catalog:
        """Return the catalog that a new leader loads from the rows."""
        catalog = Catalog()
        await self.env.tasks.run(Lane.COMPUTE, catalog.load, await self.rows.rows())
        return catalog


def request(name: str, tablets: int) -> pb.CreateTableRequest:
    """Return the request for a table of three columns."""
    levels = () if tablets == 1 else (HashLevel((SCHEMA.columns[0].id,), tablets, 7),)
    spec = pb.TableSpec(
        name=name,
        schema=convert.schema_to_proto(SCHEMA),
        partition=convert.partition_schema_to_proto(PartitionSchema(levels)),
        replicas=3,
    )
    return pb.CreateTableRequest(table=spec)


def heartbeat(
    info: pb.ServerInfoResponse, tablets: Sequence[pb.TabletReport] = (), *, full: bool = False
) -> pb.HeartbeatRequest:
    """Return a heartbeat; without tablets, that of an unchanged server."""
    return pb.HeartbeatRequest(server=info, full=full, report_sequence=1, tablets=tablets)


def server_info(uuid: str, number: int) -> pb.ServerInfoResponse:
    return pb.ServerInfoResponse(
        uuid=uuid, role="tserver", incarnation=1, address=f"10.0.0.{number}:7050",
        peer_address=f"10.0.0.{number}:9050", web_address=f"10.0.0.{number}:8050",
    )  # fmt: skip


def _report(tablet: Any, *, leads: bool) -> pb.TabletReport:
    consensus = pb.ConsensusState()
    consensus.CopyFrom(tablet.consensus)
    consensus.term, consensus.leader = 1, tablet.members[0]
    made = pb.TabletReport(
        tablet_id=tablet.id, table_id=tablet.table_id, state="RUNNING", consensus=consensus,
        role="LEADER" if leads else "FOLLOWER",
    )  # fmt: skip
    for member in tablet.members[1:] if leads else ():
        made.health.add(uuid=member, state="HEALTHY")
    return made


@contextmanager
def large() -> Iterator[Large]:
    """Yield an empty catalog on a temporary disk."""
    with TemporaryDirectory(prefix="nyala-bench-catalog-") as folder:
        files = system_env(None).files  # type: ignore[arg-type]
        tablet = Tablet.create(files, f"{folder}/data", sys_catalog.tablet_info())
        yield Large(tablet)
        tablet.close()


def resident_kb() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])
