"""Three real masters over the real log, Raft and tablet, on virtual time: first start, failover, power."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nyala.common.errors import NotLeader, NyalaError, Retryable
from nyala.common.options import Options
from nyala.env.rpc import Method
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess
from tests.unit.master.master_helpers import create_request, server_info

OPTIONS = Options(wal_segment_mb=1)
NAMES = ("m0", "m1", "m2")


class Unlucky(random.Random):
    """Draws the worst power cut: of what was not synced nothing is kept."""

    def choice(self, seq):
        return seq[0]


class Masters:
    """Real masters; the test speaks as client and as tablet servers that keep no replicas."""

    def __init__(
        self,
        loop: SimLoop,
        lists: dict[str, tuple[str, ...]] | None = None,
        options: Options = OPTIONS,
    ) -> None:
        self.loop = loop
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
) -> Any:
    async def main(loop: SimLoop) -> Any:
        masters = Masters(loop, lists, options)
        result = await work(masters)
        masters.check()
        return result

    return run(main, max_time_s=300)


def others(leader: str) -> tuple[str, ...]:
    return tuple(n for n in NAMES if n != leader)


@pytest.mark.row("S0.7", "S0.2")
def test_fresh_masters_find_each_other_and_one_of_them_answers():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        for name in others(leader):
            with pytest.raises(NotLeader) as refused:
                await masters.tables(name)
            assert refused.value.address == f"{leader}:1"
            assert refused.value.leader == masters.master(leader).uuid
        assert await masters.tables(leader) == []
        await masters.loop.delay(1_000_000)
        ids = {masters.master(name).cluster_id for name in NAMES}
        answers = [await masters.status(name) for name in NAMES]
        assert {a.leader_address for a in answers} == {f"{leader}:1"}
        return ids

    (cluster_id,) = with_masters(work)
    assert len(cluster_id) == 32


def test_a_fresh_master_waits_for_the_others_and_says_for_whom():
    async def work(masters):
        masters.start("m0", "m1")
        await masters.loop.delay(5_000_000)
        with pytest.raises(Retryable, match="waits for the masters m2:1 to answer"):
            await masters.tables("m0")
        masters.start("m2")
        return await masters.leader()

    assert with_masters(work) in NAMES


def test_masters_that_were_given_different_lists_refuse_and_say_so():
    async def work(masters):
        masters.start()
        await masters.loop.delay(5_000_000)
        with pytest.raises(NyalaError, match="start all with the same list"):
            await masters.tables("m0")
        return [masters.master(name).leading for name in ("m0", "m2")]

    assert with_masters(work, {"m1": ("m0", "m1")}) == [None, None]


@pytest.mark.row("S0.2", "S0.8")
def test_the_next_leader_knows_every_table_and_the_old_one_has_nothing_to_say():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        made = await masters.create(leader, "t", 1)
        masters.network.partition([leader], [*others(leader), "me"])
        after = await masters.leader(others(leader))
        assert await masters.tables(after) == ["t"]
        await masters.heartbeat("a", "b", "c", among=(after,))
        assert await masters.create(after, "t", 1) == made, "the same operation, another master"
        assert await masters.create(after, "u", 2) != made
        masters.network.heal()
        masters.network.partition([leader], others(leader))
        with pytest.raises(Retryable):
            await masters.tables(leader)
        masters.network.heal()
        await masters.loop.delay(2_000_000)
        return await masters.tables(await masters.leader())

    assert with_masters(work) == ["t", "u"]


@pytest.mark.row("S0.8")
def test_a_new_leader_answers_retry_until_it_has_read_the_catalog():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await masters.create(leader, "t")
        masters.processes[leader].kill()
        seen: list[str] = []
        rest = others(leader)
        while not seen:
            for name in rest:
                try:
                    seen += (await masters.tables(name)) or ["nothing"]
                except Retryable:
                    continue
            await masters.loop.delay(1_000)
        return seen

    assert with_masters(work) == ["t"], "never an empty answer"


@pytest.mark.row("S0.2")
def test_a_power_cut_of_all_masters_loses_nothing_acknowledged():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        first = await masters.create(leader, "t", 1)
        cluster_id = masters.master(leader).cluster_id
        for name in NAMES:
            masters.processes[name].disk.rng = Unlucky()
            masters.processes[name].kill(power_cut=True)
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        assert await masters.create(leader, "t", 1) == first
        assert masters.master(leader).cluster_id == cluster_id
        return await masters.tables(leader)

    assert with_masters(work) == ["t"]


def test_a_leader_cut_off_in_the_middle_of_a_create_leaves_all_of_it_or_nothing():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await masters.loop.delay(2_000_000)
        await masters.heartbeat("a", "b", "c")
        masters.network.partition([leader], others(leader))
        with pytest.raises(NyalaError):
            await masters.create(leader, "t", 1, timeout_ms=20_000)
        after = await masters.leader(others(leader))
        assert await masters.tables(after) == []
        masters.network.heal()
        await masters.loop.delay(3_000_000)
        after = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        assert await masters.tables(after) == []
        await masters.create(after, "t", 1)
        return await masters.tables(after)

    assert with_masters(work) == ["t"]


def test_one_master_alone_is_a_cluster():
    async def work(masters):
        masters.start("m0")
        assert await masters.leader(("m0",)) == "m0"
        await masters.heartbeat("a", "b", "c", among=("m0",))
        await masters.create("m0", "t")
        masters.processes["m0"].kill()
        masters.start("m0")
        return await masters.tables(await masters.leader(("m0",)))

    assert with_masters(work, {"m0": ("m0",)}) == ["t"]
