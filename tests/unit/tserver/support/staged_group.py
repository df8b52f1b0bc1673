"""A simulated cluster with one table, whose transactions a test stages, prepares and resolves by hand."""

from collections.abc import Awaitable, Callable
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.transactions.script import Decisions, script
from tests.sim.transactions.staged_table import StagedTable
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess

T1, T2 = b"1" * 16, b"2" * 16


class StagedGroup(StagedTable):
    """A `StagedTable` with its cluster, and with the script that answers status requests."""

    def __init__(
        self, cluster: SimCluster, core: ClientCore, table: Any, decisions: Decisions
    ) -> None:
        super().__init__(cluster, core, table)
        self.decisions = decisions

    @property
    def tablet(self) -> TabletId:
        """The first tablet."""
        return self.tablets[0]

    def process_of(self, tablet: TabletId | None = None) -> SimProcess:
        """Return the server that leads a tablet."""
        found = self.cluster.leader_of(tablet or self.tablet)
        assert found is not None, "no server leads"
        return found

    def replica(self, process: SimProcess | None = None) -> Any:
        """Return the replica of the first tablet on a server, by default its leader."""
        return (process or self.process_of()).server.host.get(self.tablet)

    def followers(self) -> list[SimProcess]:
        """Return the servers that do not lead the first tablet."""
        return [p for p in self.cluster.tservers if p is not self.process_of()]

    async def on(self, work: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        """Run a coroutine function in the client's process."""

        async def call() -> Any:
            return await work(*args, **more)

        return await self.cluster.run(self.process, call)

    def begin(self, work: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> list[Any]:
        """Start a coroutine function in the client's process; its result or error is appended."""
        found: list[Any] = []

        async def call() -> None:
            try:
                found.append(await work(*args, **more))
            except NyalaError as err:
                found.append(err)

        self.process.run(call)
        return found

    async def write(self, key: int, value: int, timeout_ms: int = 5_000) -> pb.WriteResult:
        """Write one row outside of transactions, at the leader of the first tablet."""
        sequence = self.next_write = getattr(self, "next_write", 0) + 1
        header = self.header(self.tablet, b"w" * 16, sequence, timeout_ms=timeout_ms)
        return await self.put(header, {key: value})

    async def prepared(self, transaction: bytes, rows: dict[int, int]) -> int:
        """Stage rows in the first tablet and prepare them; return the prepare time."""
        self.decisions.trying.add(transaction)
        result = await self.stage_in(self.tablet, transaction, rows)
        assert not result.HasField("error"), result
        found = await self.prepare(self.tablet, transaction, self.decisions.attempt())
        return int(found.time)

    async def transfer(self) -> None:
        """Have another server lead the first tablet."""
        old = self.process_of()
        request = pb.LeaderStepDownRequest(
            destination_uuid=str(old.server.uuid),
            cluster_id=str(old.server.cluster_id),
            tablet_id=self.tablet,
        )
        call = self.core.env.rpc.call
        await call(old.address, methods.LEADER_STEP_DOWN, request, timeout_ms=5_000)

        def led() -> bool:
            found = self.cluster.leader_of(self.tablet)
            return found is not None and found is not old

        while not led():
            await self.core.env.tasks.sleep_ms(10)

    async def pause(self, ms: int) -> None:
        """Let virtual time pass."""
        await self.cluster.loop.delay(ms * 1000)


def with_group(
    test: Callable[[StagedGroup], Awaitable[None]], *, tablets: int = 1, options: Options = OPTIONS
) -> None:
    """Run a test with a started cluster and a table."""

    async def main(loop: SimLoop) -> None:
        cluster, decisions = SimCluster(loop, 5, options=options), Decisions()
        script(cluster, decisions)
        core = await cluster.start()
        table = await cluster.create_table(core, tablets=tablets)
        await cluster.until(
            lambda: all(cluster.leader_of(t.id) for t in table.tablets), "each tablet has a leader"
        )
        await test(StagedGroup(cluster, core, table, decisions))
        cluster.look()

    run(main)
