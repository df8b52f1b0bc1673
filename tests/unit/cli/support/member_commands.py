"""Commands about members against real servers in virtual time, which may be killed at any of their orders."""

from dataclasses import replace
from typing import Any

import msgspec

from nyala.client.core import ClientCore
from nyala.operate import ksck_checksum
from nyala.operate.membership import Membership
from nyala.wire import methods
from tests.sim.systems.cluster import CLIENT_OPTIONS, OPTIONS, SimCluster
from tests.sim.world.loop import run
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
            return await ksck_checksum.compare(self.core, 20_000)

        members = {self.uuid(p) for p in self.cluster.tservers if p.name in self.kinds()}

        async def looked_up():
            table = await self.core.open_table("t")
            return {u for u, _ in table.tablets[0].replicas}

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
        cluster = SimCluster(loop, 5, tservers=4, options=options)
        scenario = Scenario(*await started(cluster))
        await cluster.add_workers(workers)
        await work(scenario)
        await cluster.finish()
        await scenario.verify()

    run(main, max_time_s=900)
