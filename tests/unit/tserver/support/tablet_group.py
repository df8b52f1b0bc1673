"""A tablet of three replicas among five simulated tablet servers, and orders about its members."""

import sys
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.core import ClientCore
from nyala.client.journal.core import JournalCore
from nyala.client.journal.locations import OpenJournal
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.process import SimProcess


class Group:
    """One tablet, its servers by number, and a client for requests to them."""

    def __init__(self, cluster: SimCluster, core: ClientCore, tablet: TabletId) -> None:
        self.cluster = cluster
        self.core = core
        self.tablet = tablet
        self.cluster_id = str(cluster.tservers[0].server.cluster_id)
        self._uuids = {p.name: ServerUuid(p.server.uuid) for p in cluster.tservers}

    # ---- servers and replicas ----------------------------------------------------------------------------

    @property
    def leader(self) -> SimProcess:
        found = self.cluster.leader_of(self.tablet)
        assert found is not None, "no server leads"
        return found

    def uuid(self, process: SimProcess) -> ServerUuid:
        """Return the uuid of a server, running or not."""
        return self._uuids[process.name]

    def status(self, process: SimProcess | None = None) -> Any:
        process = process or self.leader
        return process.server.host.find(self.tablet).status()

    def holders(self) -> list[SimProcess]:
        """The servers with a replica that is no tombstone, the leader first."""
        found = [p for p in self.cluster.tservers if self.state(p) not in ("", "TOMBSTONED")]
        return sorted(found, key=lambda p: p is not self.leader)

    def state(self, process: SimProcess) -> str:
        replica = process.server.host.find(self.tablet) if process.alive else None
        return "" if replica is None else str(replica.state.value)

    def empty_servers(self) -> list[SimProcess]:
        """Return the running servers that have never had a replica."""
        return [p for p in self.cluster.tservers if p.alive and not self.state(p)]

    def member(self, process: SimProcess, **more: Any) -> pb.Member:
        return pb.Member(
            uuid=self.uuid(process),
            peer_address=process.peer_address,
            address=process.address,
            **{"electable": True, **more},
        )

    def fence(self, process: SimProcess) -> pb.Fence:
        """Return the fence of the leader master that a server has."""
        known = process.server.fence
        return pb.Fence(catalog_incarnation=known.incarnation, term=known.term)

    # ---- orders ---------------------------------------------------------------------------------

    async def on(self, work: Any, *args: Any) -> Any:
        """Run a coroutine function in the client's process."""
        return await self.cluster.run(self.cluster.clients[-1], work, *args)

    async def ask(self, process: SimProcess, method: Any, request: Any) -> Any:
        async def call() -> Any:
            rpc = self.core.env.rpc
            return await rpc.call(process.address, method, request, timeout_ms=20_000)

        return await self.on(call)

    async def change(
        self, *changes: tuple[str, pb.Member], to: SimProcess | None = None, **more: Any
    ) -> pb.ConsensusState:
        to = to or self.leader
        at = self.status().committed_config.id
        fields: dict[str, Any] = {
            "destination_uuid": self.uuid(to),
            "cluster_id": self.cluster_id,
            "tablet_id": self.tablet,
            "config_term": at.term,
            "config_index": at.index,
            "changes": [pb.MemberChange(kind=k, member=m) for k, m in changes],
        }
        request = pb.ChangeConfigRequest(**{**fields, **more})
        answer: pb.ChangeConfigResponse = await self.ask(to, methods.CHANGE_CONFIG, request)
        return answer.consensus

    async def step_down(self, to: SimProcess | None = None, successor: str = "") -> str:
        to = to or self.leader
        request = pb.LeaderStepDownRequest(
            destination_uuid=self.uuid(to),
            cluster_id=self.cluster_id,
            tablet_id=self.tablet,
            successor=successor,
        )
        return str((await self.ask(to, methods.LEADER_STEP_DOWN, request)).leader)

    # ---- content --------------------------------------------------------------------------------

    async def add(self, number: int) -> None:
        """Write a row, or append an entry, to `t`."""

        async def write() -> None:
            if kind == "journal":
                await append(self.core, await JournalCore(self.core).open("t"), b"%d" % number)
                return
            table, numbers = await self.core.open_table("t"), pa.array([number])
            rows = pa.record_batch([numbers, numbers], names=["k", "v"])
            await self.core.session.write(
                table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000
            )

        await self.on(write)

    async def added(self, max_age_ms: int = 0) -> list[int]:
        """Return the numbers that were added to `t`, in their order.

        Args:
            max_age_ms: of a read that any replica may serve; 0: the leader serves it.
        """

        async def read() -> list[int]:
            if kind == "journal":
                journals = JournalCore(self.core)
                wanted = jb.JournalReadRequest(log=jb.ReadLog(log="log", limit=1000))
                answer = await journals.reads.read(
                    await journals.open("t"), wanted, max_age_ms=max_age_ms
                )
                return [int(e.data) for e in answer.log.entries if e.data.isdigit()]
            spec = ReadSpec(latest=True, max_age_ms=max_age_ms)
            tokens = await self.core.reader.tokens(await self.core.open_table("t"), spec, 20_000)
            parts = await self.core.reader.collect_all(tokens, lambda _header: None)
            return sorted(k for part in parts for b in part for k in b.column("k").to_pylist())

        return list(await self.on(read))


kind = "table"
"""Kind of `t` in the tests that run now; see `both_kinds`."""


@pytest.fixture(params=["table", "journal"])
def both_kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with a table, and with a journal; both are called `t`."""
    monkeypatch.setattr(sys.modules[__name__], "kind", request.param)
    return str(request.param)


async def started(cluster: SimCluster) -> tuple[SimCluster, ClientCore, TabletId]:
    """Start a cluster and create `t`; return the arguments of a `Group`."""
    core = await cluster.start()
    if kind == "table":
        table = await cluster.create_table(core, "t")
        return cluster, core, table.tablets[0].id

    async def create() -> TabletId:
        made = await JournalCore(core).create("t", 3, 1 << 30)
        await append(core, made, b"first", b"second")
        return TabletId(made.tablet.id)

    return cluster, core, TabletId(str(await cluster.run(cluster.clients[-1], create)))


async def append(core: ClientCore, journal: OpenJournal, *data: bytes) -> None:
    """Append entries to the log `log`, one step each."""
    own = JournalCore(core)
    for one in data:
        change = jb.JournalChange(append=jb.AppendEntry(log="log", data=one))
        await own.step(journal, [], [change])


async def replicas_of_t(core: ClientCore) -> set[str]:
    """Return the servers of the replicas of `t`, as the masters name them."""
    if kind == "journal":
        journal = await JournalCore(core).open("t")
        return {uuid for uuid, _ in journal.tablet.replicas}
    table = await core.open_table("t")
    return {uuid for uuid, _ in table.tablets[0].replicas}


async def refused(work: Any) -> NyalaError:
    """Return the error of a call that is refused."""
    try:
        found = await work
    except NyalaError as err:
        return err
    raise AssertionError(f"not refused: {found}")
