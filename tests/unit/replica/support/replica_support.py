"""Replica hosts on virtual time: a few simulated servers, many groups, a machine that counts executions."""

import inspect
import json
from collections.abc import Callable, Sequence

from nyala.common.errors import Corrupt, InvalidArgument, NyalaError
from nyala.common.ids import CommittedOperation, OpId, ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.disciplined_clock import DisciplinedClock
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.messages import PeerBatch
from nyala.replica.host import ReplicaHost
from nyala.replica.multiraft.senders import ConfigurationSource
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint, FlushPoint, Transport
from nyala.replica.status import State, WriteOutcome
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess

GROUP = TabletId("a" * 32)
CLIENT = b"c" * 16
BOOM = b"boom"


def uuid_of(number: int) -> ServerUuid:
    return ServerUuid(f"{number:032x}")


class AddingMachine:
    """key -> sum of the added numbers, so that repeated execution is detected. One file as of the cut.

    Attributes:
        growth: bytes in memory for each byte of an operation.
    """

    growth = 1

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.path = f"{directory}/state"
        self.sums: dict[str, int] = {}
        self.runs = 0  # operations in this incarnation
        self.groups: list[int] = []
        self.closed = False
        self._flush_point = FlushPoint()
        self._bytes = 0
        if files.exists(self.path):
            try:
                state = json.loads(files.read(self.path))
            except ValueError as err:
                raise Corrupt(f"{self.path}: {err}") from err
            self.sums = state["sums"]
            term, index, stamp, extra = state["cut"]
            self._flush_point = FlushPoint(OpId(term, index), stamp, bytes.fromhex(extra))

    @property
    def flush_point(self) -> FlushPoint:
        return self._flush_point

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        assert not self.closed
        self.groups.append(len(operations))
        return [self._one(o) for o in operations]

    def _one(self, operation: CommittedOperation) -> bytes:
        if operation.payload == BOOM:
            raise ValueError("refused by the test's machine")
        key, amount = operation.payload.decode().split()
        self.sums[key] = self.sums.get(key, 0) + int(amount)
        self.runs += 1
        self._bytes += self.growth * len(operation.payload)
        return b"%d" % self.sums[key]

    def unflushed_bytes(self) -> int:
        return self._bytes

    def prepare_flush(self, flush_point: FlushPoint) -> Callable[[], Callable[[], None]] | None:
        if flush_point.op == self._flush_point.op:
            return None
        at = [flush_point.op.term, flush_point.op.index, flush_point.stamp, flush_point.extra.hex()]
        state = json.dumps({"sums": self.sums, "cut": at}).encode()
        frozen = self._bytes

        def install() -> None:
            self._bytes -= frozen
            self.files.rename(self.path + ".new", self.path)
            self.files.sync_dir(self.path.rpartition("/")[0])
            self._flush_point = flush_point

        def build() -> Callable[[], None]:
            self.files.write_new(self.path + ".new", [state])
            return install

        return build

    def checkpoint(self) -> AnyCheckpoint:
        raise InvalidArgument("this machine is not copied")

    def close(self) -> None:
        self.closed = True


class HostProgram:
    """A process with only a replica host."""

    machine: type[AddingMachine] = AddingMachine

    def __init__(
        self,
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        options: Options,
        members: ConfigurationSource | None = None,
    ) -> None:
        self.members = members
        self.env = env
        self.metrics = Metrics()
        self.changes: list[TabletId] = []
        self.transport = transport
        self._arguments = (uuid, options)
        self.host: ReplicaHost | None = None
        self.clock: ServerClock | None = None

    async def start(self) -> None:
        uuid, options = self._arguments
        self.env.files.make_dir("/data")
        physical = DisciplinedClock(self.env.clock, options.clock_max_ahead_ms)
        self.clock = ServerClock(physical, self.env.files, "/data/hybrid_clock")
        self.host = await ReplicaHost.open(
            self.env,
            options,
            "/data",
            uuid,
            self.transport,
            self.clock,
            lambda _, directory: self.machine(self.env.files, directory),
            metrics=self.metrics,
            on_change=self.changes.append,
            members=self.members,
        )

    def handlers(self):
        return {}

    async def close(self) -> None:
        if self.host is not None:
            await self.host.close()


class Fleet:
    """`servers` hosts, each with the given groups, on all of them."""

    def __init__(
        self,
        loop: SimLoop,
        servers: int = 3,
        options: Options | None = None,
        members: ConfigurationSource | None = None,
    ) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, seeded(7, "network"))
        options = options or Options(wal_segment_mb=1)
        self.processes = [
            SimProcess(loop, self.network, 7, f"s{n}", f"s{n}:7", f"s{n}:9") for n in range(servers)
        ]
        for number, process in enumerate(self.processes):
            process.program = lambda env, transport, n=number: HostProgram(
                env, transport, uuid_of(n), options, members
            )
        self.config = self.configuration(range(servers))
        self.sequence = 0
        self.spawned: list[object] = []

    def configuration(self, numbers: Sequence[int]) -> Configuration:
        return initial(Member(uuid_of(n), f"s{n}:9", f"s{n}:7") for n in numbers)

    async def start(self, groups: Sequence[TabletId] = (GROUP,)) -> "Fleet":
        for number in range(len(self.processes)):
            await self.boot(number)
            for group in groups:
                await self.create(number, group)
        return self

    async def boot(self, number: int) -> ReplicaHost:
        await self.processes[number].start()
        return self.host(number)

    async def create(self, number: int, group: TabletId, config: Configuration | None = None):
        env = self.processes[number].env
        assert env is not None
        return await self.as_(
            number,
            self.host(number).create_replica(
                group, config or self.config, lambda d: AddingMachine(env.files, d)
            ),
        )

    async def as_(self, number: int, work):
        """Await a coroutine as this server's process."""

        async def inner():
            return await work

        return await self.processes[number].run(inner)

    def forgive(self, kind: type[BaseException]) -> None:
        """Drop the recorded bugs of a kind, which the test has planted."""
        assert any(isinstance(err, kind) for err in self.loop.failures), "none was met"
        for found in (self.loop.failures, *(p.failures for p in self.processes)):
            found[:] = [err for err in found if not isinstance(err, kind)]

    def spawn(self, number: int, work):
        """Run a coroutine as this server's process; return (done, [result or error])."""
        found: list[object] = []

        async def inner():
            try:
                found.append(await work)
            except NyalaError as err:
                found.append(err)

        self.spawned.append(work)
        self.processes[number].run(inner)
        return found

    def end(self) -> None:
        """Close the coroutines of processes that ended before they began."""
        for work in self.spawned:
            if (
                inspect.iscoroutine(work)
                and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
            ):
                work.close()

    def host(self, number: int) -> ReplicaHost:
        host = self.processes[number].server.host
        assert isinstance(host, ReplicaHost)
        return host

    def replica(self, number: int, group: TabletId = GROUP) -> Replica:
        return self.host(number).get(group)

    def machine(self, number: int, group: TabletId = GROUP) -> AddingMachine:
        machine = self.replica(number, group).machine
        assert isinstance(machine, AddingMachine)
        return machine

    def alive(self) -> list[int]:
        return [
            n
            for n, p in enumerate(self.processes)
            if p.alive and p.server is not None and p.server.host is not None
        ]

    def leading(self, group: TabletId = GROUP, among: Sequence[int] | None = None) -> int | None:
        """The server that leads in the highest term and accepts."""
        found = []
        for n in self.alive() if among is None else among:
            replica = self.host(n).find(group)
            if replica is not None and replica.is_leader and replica.state is State.RUNNING:
                assert replica.node is not None
                found.append((replica.node.term, n))
        return max(found)[1] if found else None

    async def leader(self, group: TabletId = GROUP, among: Sequence[int] | None = None) -> int:
        await self.until(lambda: self.leading(group, among) is not None, f"{group} has a leader")
        number = self.leading(group, among)
        assert number is not None
        return number

    async def until(self, condition, what: str, timeout_ms: int = 20_000) -> None:
        for _ in range(timeout_ms):
            if condition():
                return
            await self.loop.delay(1000)
        raise AssertionError(f"not within {timeout_ms} ms of virtual time: {what}")

    async def pass_ms(self, duration_ms: float) -> None:
        await self.loop.delay(duration_ms * 1000)

    def call(self, number: int, payload: bytes, *, group=GROUP, sequence=None, client=CLIENT,
             first=0, timeout_ms=5000, seen=0, since=0, owner=0):  # fmt: skip
        """The coroutine of one write."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        return self.replica(number, group).write(
            payload,
            client_id=client,
            sequence=sequence,
            first_outstanding=first,
            timeout_ms=timeout_ms,
            seen=seen,
            since=since,
            owner=owner,
        )

    async def write(self, payload: bytes, *, group=GROUP, **more) -> WriteOutcome:
        """Write at the leader."""
        number = await self.leader(group)
        outcome = await self.as_(number, self.call(number, payload, group=group, **more))
        assert isinstance(outcome, WriteOutcome)
        return outcome

    async def settled(self, group: TabletId = GROUP) -> None:
        """Wait until all living replicas have applied the same."""

        def same() -> bool:
            nodes = [self.host(n).get(group) for n in self.alive()]
            if self.leading(group) is None:
                return False
            return len({(r.status().applied, r.status().last) for r in nodes}) == 1

        await self.until(same, "all replicas have applied the same entries")

    async def restart(self, number: int) -> None:
        await self.processes[number].restart()

    def deliver(self, number: int, batch: PeerBatch) -> None:
        """Deliver a batch to a server as its peer port does."""
        endpoint = self.network.endpoint(f"s{number}:9")
        assert endpoint is not None
        assert endpoint.receive is not None
        endpoint.incarnation.inside(endpoint.receive, batch)

    def refusals(self, number: int, why: str) -> float:
        """Count the messages that a server has refused for a reason."""
        name = "nyala_replica_refused_messages_total"
        registry = self.processes[number].server.metrics.registry
        return registry.get_sample_value(name, {"why": why}) or 0


def record_batches(process, received):
    """Append all batches that a server sends from now on to `received`."""
    transport = process.server.transport
    send = transport.send

    def note(address, batch):
        received.append(batch)
        send(address, batch)

    transport.send = note


def scenario(
    servers=3, groups=(GROUP,), options=None, start=True, max_time_s=600, members=lambda: None
):
    """Run an async test function with a fleet; `members` makes what its masters know."""

    def decorate(fn):
        def wrapped():
            async def main(loop):
                fleet = Fleet(loop, servers, options, members())
                if start:
                    await fleet.start(groups)
                await fn(fleet)
                fleet.end()
                for process in fleet.processes:
                    assert not process.failures, process.failures

            run(main, max_time_s=max_time_s)

        wrapped.__name__ = fn.__name__
        wrapped.__doc__ = fn.__doc__
        wrapped.__module__ = fn.__module__
        return wrapped

    return decorate
