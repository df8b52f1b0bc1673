"""A cluster of real masters on virtual time."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nyala.common.errors import Retryable
from nyala.common.options import Options
from nyala.env.rpc import Method
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.security.authorities.keyring import Keyring
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess
from tests.unit.master.support.master_helpers import create_request, server_info

OPTIONS = Options(wal_segment_mb=1)
NAMES = ("m0", "m1", "m2")


class Masters:
    """Real masters; the test acts as client and as tablet servers without replicas."""

    def __init__(
        self,
        loop: SimLoop,
        lists: dict[str, tuple[str, ...]] | None = None,
        options: Options = OPTIONS,
        keys: Keyring | Mapping[str, Keyring] | None = None,
    ) -> None:
        self.loop = loop
        self.keys = keys
        self.options = options
        self.network = SimNetwork(loop, seeded(7, "network"))
        self.processes = {
            name: self._process(name, (lists or {}).get(name, NAMES)) for name in NAMES
        }
        self.me = SimProcess(loop, self.network, 7, "me")
        self.rpc = self.me.open().rpc
        self.sequence = 0

    def _process(self, name: str, masters: tuple[str, ...]) -> SimProcess:
        config = MasterConfig(
            "/data",
            f"{name}:1",
            f"{name}:2",
            master_addresses=tuple(f"{m}:1" for m in masters),
            options=self.options,
            keys=self.keys.get(name) if isinstance(self.keys, Mapping) else self.keys,
        )

        def program(env: Any, transport: Any) -> Master:
            return Master(env, config, transport)

        return SimProcess(self.loop, self.network, 7, name, f"{name}:1", f"{name}:2", program)

    def start(self, *names: str) -> None:
        for name in names or NAMES:
            self.processes[name].start()

    def master(self, name: str) -> Master:
        server = self.processes[name].server
        assert isinstance(server, Master)
        return server

    async def ask(self, name: str, method: Method, request: Any, timeout_ms: int = 3000) -> Any:
        return await self.rpc.call(f"{name}:1", method, request, timeout_ms=timeout_ms)

    async def status(self, name: str) -> pb.MasterStatusResponse:
        answer = await self.ask(name, methods.MASTER_STATUS, pb.MasterStatusRequest())
        assert isinstance(answer, pb.MasterStatusResponse)
        return answer

    async def leader(self, among: tuple[str, ...] = NAMES, timeout_s: float = 20) -> str:
        end = self.loop.time() + timeout_s
        while self.loop.time() < end:
            for name in among:
                try:
                    if (await self.status(name)).ready:
                        return name
                except Retryable:
                    continue
            await self.loop.delay(50_000)
        raise AssertionError(f"no leader is ready among {among} in {timeout_s} s")

    async def heartbeat(self, *servers: str, among: tuple[str, ...] = NAMES) -> None:
        for name in among:
            for server in servers:
                self.sequence += 1
                request = pb.HeartbeatRequest(
                    server=server_info(server), full=True, report_sequence=self.sequence
                )
                await self.ask(name, methods.HEARTBEAT, request)

    async def create(
        self, leader: str, name: str, sequence: int = 0, timeout_ms: int = 8000
    ) -> str:
        request = create_request(name)
        if sequence:
            request.operation.client, request.operation.sequence = b"c" * 16, sequence
        answer = await self.ask(leader, methods.CREATE_TABLE, request, timeout_ms)
        return str(answer.table_id)

    async def tables(self, leader: str) -> list[str]:
        answer = await self.ask(leader, methods.LIST_TABLES, pb.ListTablesRequest())
        return [t.name for t in answer.tables]

    def check(self) -> None:
        for process in self.processes.values():
            assert not process.failures, process.failures


def with_masters(
    work: Callable[[Masters], Awaitable[Any]],
    lists: dict[str, tuple[str, ...]] | None = None,
    options: Options = OPTIONS,
    keys: Keyring | Mapping[str, Keyring] | None = None,
) -> Any:
    async def main(loop: SimLoop) -> Any:
        masters = Masters(loop, lists, options, keys)
        result = await work(masters)
        masters.check()
        return result

    return run(main, max_time_s=300)


def others(leader: str) -> tuple[str, ...]:
    return tuple(n for n in NAMES if n != leader)
