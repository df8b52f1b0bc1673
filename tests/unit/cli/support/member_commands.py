"""Commands about members against real servers in virtual time, which may be killed at any of their orders."""

from dataclasses import replace
from typing import Any

import msgspec

from nyala.client.core import ClientCore
from nyala.client.journal.core import JournalCore
from nyala.operate.ksck import checksum
from nyala.operate.membership import Membership
from nyala.wire import methods
from tests.sim.systems.cluster import CLIENT_OPTIONS, OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, started

ORDERS = (
    methods.CHANGE_CONFIG, methods.LEADER_STEP_DOWN, methods.CREATE_WITNESS, methods.START_COPY,
    methods.CANCEL_COPY, methods.DELETE_TABLET,
)  # fmt: skip


class Killed(Exception):
    """The command's process was killed."""


class Wire:
    """Transport of a command's calls that counts its orders and calls a function at one of them."""

    def __init__(self, rpc, at=0, before=None, after=None):
        self._rpc = rpc
        self._at, self._before, self._after = at, before, after
        self.given = self.answered = 0

    async def call(self, address, method, request, *, timeout_ms):
        ordered = method in ORDERS
        self.given += ordered
        if ordered and self.given == self._at and self._before:
            self._before()
        answer = await self._rpc.call(address, method, request, timeout_ms=timeout_ms)
        self.answered += ordered
        if ordered and self.answered == self._at and self._after:
            self._after()
        return answer

    def __getattr__(self, name):
        return getattr(self._rpc, name)


class Calls:
    """A transport whose calls go through a function."""

    def __init__(self, call, rpc):
        self.call, self._rpc = call, rpc

    def __getattr__(self, name):
        return getattr(self._rpc, name)


class Appender:
    """A client that appends to the journal `t`; its entries are all there at the end, in their order."""

    def __init__(self, cluster):
        self._core = cluster.client()
        self._name = cluster.clients[-1].name.encode()
        self._appended = 0
        self._stopped = False
        self._work = cluster.clients[-1].run(self._append)

    async def _append(self):
        journals = JournalCore(self._core)
        journal = await journals.open("t")
        while not self._stopped:
            self._appended += 1
            data = self._name + b" %d" % self._appended
            await tablet_group.append(self._core, journal, data)
            await self._core.env.tasks.sleep_ms(30)
        pages = journals.log(journal, "log").entry_pages()
        found = [e.data for e in await collected(pages)]
        mine = [data for data in found if data.startswith(self._name + b" ")]
        assert mine == [self._name + b" %d" % (n + 1) for n in range(self._appended)]

    async def end(self):
        """Stop it, and check its entries."""
        self._stopped = True
        await self._work


async def collected(pages):
    """Return the items of all pages."""
    return [item async for page in pages for item in page]


def die():
    raise Killed


class Scenario(Group):
    """A group, and commands about it."""

    def command(self, timeout_ms=20_000, **wire):
        """Return a new command, and its transport."""
        self.cluster.client()
        carried: Any = Wire(self.core.env.rpc, **wire)
        addresses = [m.address for m in self.cluster.masters]
        process = self.cluster.clients[-1]
        assert process.env is not None
        assert process.incarnation is not None
        env = replace(process.env, rpc=carried)
        core = process.incarnation.inside(ClientCore, env, addresses, CLIENT_OPTIONS)
        return Membership(core, self.tablet, timeout_ms=timeout_ms), carried

    async def do(self, name, *args, **more):
        """Run one command to its end."""
        membership, _ = self.command(**more)
        await self.on(getattr(membership, name), *args)
        return membership.done

    def kinds(self):
        """Return the kind of each member of the committed configuration, by server name."""
        config = self.status().committed_config
        by_name = {}
        for p in self.cluster.tservers:
            member = config.get(self.uuid(p))
            if member is not None:
                kind = "voter" if member.voter else "non-voter"
                by_name[p.name] = kind if member.electable else f"witness {kind}"
        return by_name

    async def verify(self):
        """Wait until all replicas have the same rows, and the masters list the members."""

        async def compared():
            return await checksum.compare(self.core, 20_000)

        members = {self.uuid(p) for p in self.cluster.tservers if p.name in self.kinds()}

        async def looked_up():
            return await tablet_group.replicas_of_t(self.core)

        for _ in range(100):
            if await self.on(looked_up) == members:
                break
            await self.cluster.loop.delay(100_000)
        assert await self.on(looked_up) == members
        sums, problems = await self.on(compared)
        assert problems == []
        return sums


def with_scenario(work, workers=0, repair="off", **more):
    """Run a scenario on four tablet servers; with `repair`, masters repair concurrently."""

    async def main(loop):
        options = msgspec.structs.replace(OPTIONS, repair=repair, **more)
        cluster = SimCluster(loop, 5, tservers=4, options=options, masters=1)
        scenario = Scenario(*await started(cluster))
        if tablet_group.kind == "table":
            await cluster.add_workers(workers)
        appenders = [
            Appender(cluster) for _ in range(workers if tablet_group.kind != "table" else 0)
        ]
        await work(scenario)
        for appender in appenders:
            await appender.end()
        await cluster.finish()
        await scenario.verify()

    run(main, max_time_s=900)
