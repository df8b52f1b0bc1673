"""A journal of three replicas among four simulated tablet servers, and calls about it."""

import asyncio
from typing import Any

import msgspec

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.journal.journal import JournalMachine
from nyala.operate.ksck import check, checksum, health
from nyala.wire import methods, status
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.sim.world.process import SimProcess
from tests.unit.cli.support.member_commands import Scenario

TIMEOUT_MS = 20_000
CLIENT = b"j" * 16
KIND = 1


class JournalGroup(Scenario):
    """The group of a journal, and requests to it by RPC."""

    def __init__(self, cluster: SimCluster, core: ClientCore, tablet: TabletId, id: str) -> None:
        super().__init__(cluster, core, tablet)
        self.id = id
        self.sequence = 0

    # ---- masters -------------------------------------------------------------------------------

    async def define(self, method: Any, request: Any) -> Any:
        async def call() -> Any:
            return await self.core.masters.define(method, request, timeout_ms=TIMEOUT_MS)

        return await self.on(call)

    async def master(self, method: Any, request: Any) -> Any:
        """Send a request to the leader master."""

        async def call() -> Any:
            return await self.core.masters.call(method, request, timeout_ms=TIMEOUT_MS)

        return await self.on(call)

    async def describe(self, name: str = "", kind: int = KIND) -> pb.DescribeTableResponse:
        wanted = pb.DescribeTableRequest(name=name, id="" if name else self.id, kind=kind)
        answer: pb.DescribeTableResponse = await self.master(methods.DESCRIBE_TABLE, wanted)
        return answer

    async def alter(self, *steps: pb.AlterStep) -> int:
        """Alter the journal; return its version once every replica has it."""
        request = pb.AlterTableRequest(id=self.id, kind=KIND, steps=steps)
        version = (await self.define(methods.ALTER_TABLE, request)).schema_version
        await self.cluster.until(
            lambda: all(m.info.version == version for m in self.journals()),
            "all replicas have the new version",
        )
        return int(version)

    # ---- replicas ------------------------------------------------------------------------------

    def journals(self) -> list[JournalMachine]:
        """The machines of the living replicas, the leader's first."""
        return [p.server.tablets.journal(self.tablet).journal for p in self.holders() if p.alive]

    async def step(
        self,
        *changes: jb.JournalChange,
        conditions: tuple[jb.JournalCondition, ...] = (),
        to: SimProcess | None = None,
        sequence: int = 0,
        client: bytes = CLIENT,
    ) -> jb.JournalStepResponse:
        """Execute a step; one with the number of an earlier one is that one again."""
        self.sequence = max(self.sequence + 1, sequence)
        request = jb.JournalStepRequest(
            tablet_id=self.tablet, changes=changes, conditions=conditions, client_id=client,
            sequence=sequence or self.sequence, first_outstanding=1,
        )  # fmt: skip
        answer: jb.JournalStepResponse = await self.ask(
            to or self.leader, methods.JOURNAL_STEP, request
        )
        return answer

    async def append(self, *texts: str) -> list[int]:
        """Append entries to the log `log`, one step each; return their ids."""
        return [(await self.step(entry(text))).done.ids[0] for text in texts]

    async def value(self, key: str) -> tuple[int, bytes] | None:
        """Return the version and value of a key."""
        request = jb.JournalReadRequest(tablet_id=self.tablet, key=key)
        found = (await self.ask(self.leader, methods.JOURNAL_READ, request)).keys.keys
        return (found[0].version, found[0].value) if found else None

    async def read(self, to: SimProcess | None = None, **more: Any) -> list[bytes]:
        """Return the valid entries of the log `log`."""
        request = jb.JournalReadRequest(
            tablet_id=self.tablet, log=jb.ReadLog(log="log", limit=1000), **more
        )
        answer = await self.ask(to or self.leader, methods.JOURNAL_READ, request)
        return [e.data for e in answer.log.entries]

    async def tail(
        self,
        after: int,
        to: SimProcess | None = None,
        wait_ms: int = 5000,
        tablet: str = "",
        prefix: str = "",
    ) -> jb.JournalTailResponse:
        """Send one request for changes after an id in the log `log`, or in the keys with a prefix.

        Raises:
            NyalaError: the answer is an error.
        """
        request = jb.JournalTailRequest(
            request=7, tablet_id=tablet or self.tablet, after=after, wait_ms=wait_ms
        )
        if prefix:
            request.prefix = prefix
        else:
            request.log = "log"
        answer = await self.asked(to or self.leader, request)
        assert answer.request == 7
        return answer

    async def asked(self, to: SimProcess, request: jb.JournalTailRequest) -> jb.JournalTailResponse:
        """Send one request for changes; return its answer.

        Raises:
            NyalaError: the answer is an error.
        """

        answer = await self.answer(to, methods.JOURNAL_TAIL, request)
        if answer.HasField("error"):
            raise status.from_proto(answer.error)
        assert isinstance(answer, jb.JournalTailResponse)
        return answer

    async def answer(self, to: SimProcess, method: Any, request: Any) -> Any:
        """Send one request on a new stream of requests; return its answer.

        Raises:
            NyalaError: the stream ended.
        """

        async def call() -> Any:
            response = asyncio.get_running_loop().create_future()
            stream = self.core.env.rpc.request_stream(
                to.address,
                method,
                lambda found: None if response.done() else response.set_result(found),
            )
            stream.send(request)
            try:
                return await response
            finally:
                stream.abandon()

        answer = await self.on(call)
        if isinstance(answer, NyalaError):
            raise answer
        return answer

    # ---- tools -----------------------------------------------------------------------------------

    async def checksum_of(self, server: SimProcess, at: int = 0) -> Any:
        """Return the checksum of one replica."""
        request = reads_pb2.ChecksumRequest(tablet_id=self.tablet, at=at)
        return await self.ask(server, methods.CHECKSUM, request)

    async def agreed(self) -> list[checksum.Sum]:
        """Wait until the masters know all replicas, and their checksums are equal; return them."""
        for _ in range(100):
            sums, problems = await self.compare()
            if not problems:
                return sums
            await self.cluster.loop.delay(200_000)
        raise AssertionError(problems)

    async def compare(self) -> tuple[list[checksum.Sum], list[str]]:
        """Compare the replicas' checksums, of all kinds."""

        async def call() -> Any:
            return await checksum.compare(self.core, TIMEOUT_MS)

        found: tuple[list[checksum.Sum], list[str]] = await self.on(call)
        return found

    async def check(self) -> health.ClusterHealth:
        """Return the findings of ksck."""

        async def call() -> Any:
            return await check.check(self.core)

        found: health.ClusterHealth = await self.on(call)
        return found


def entry(text: str, log: str = "log", invalidates: tuple[int, ...] = ()) -> jb.JournalChange:
    return jb.JournalChange(
        append=jb.AppendEntry(log=log, data=text.encode(), invalidates=invalidates)
    )


def set_key(key: str, value: str) -> jb.JournalChange:
    return jb.JournalChange(set=jb.SetKey(key=key, value=value.encode()))


def version_is(key: str, version: int) -> jb.JournalCondition:
    return jb.JournalCondition(key_version=jb.KeyVersion(key=key, version=version))


def last_is(entry_id: int, log: str = "log") -> jb.JournalCondition:
    return jb.JournalCondition(log_last=jb.LogId(log=log, id=entry_id))


async def started(cluster: SimCluster, name: str = "ops", **options: str) -> JournalGroup:
    """Start a cluster and create a journal, as its client does."""
    core = await cluster.start()
    spec = pb.TableSpec(name=name, kind=KIND, replicas=3, options=options)

    async def create() -> tuple[str, str]:
        request = pb.CreateTableRequest(table=spec)
        made = await core.masters.define(methods.CREATE_TABLE, request, timeout_ms=TIMEOUT_MS)
        wanted = pb.DescribeTableRequest(id=made.table_id, kind=KIND)
        while True:
            described = await core.masters.call(
                methods.DESCRIBE_TABLE, wanted, timeout_ms=TIMEOUT_MS
            )
            if described.ready:
                break
            await core.env.tasks.sleep_ms(50)
        where = pb.TabletLocationsRequest(table_id=made.table_id)
        found = await core.masters.call(methods.TABLET_LOCATIONS, where, timeout_ms=TIMEOUT_MS)
        (tablet,) = found.tablets
        return made.table_id, tablet.id

    created: Any = await cluster.run(cluster.clients[-1], create)
    group = JournalGroup(cluster, core, TabletId(created[1]), created[0])
    await cluster.until(
        lambda: cluster.leader_of(group.tablet) is not None and len(group.holders()) == 3,
        "the journal is running",
    )
    return group


def with_journal(work: Any, *, repair: str = "off", loses: bool = False, **more: Any) -> None:
    """Run a scenario about a journal; `loses`: committed entries may be lost; `more`: options of servers."""

    async def main(loop: Any) -> None:
        options = msgspec.structs.replace(OPTIONS, repair=repair, **more)
        group = await started(SimCluster(loop, 5, tservers=4, options=options, masters=1))
        if loses:
            loop.after_step = lambda: None  # its checkers require all committed entries
        await work(group)
        if not loses:
            group.cluster.look()

    run(main, max_time_s=600)
