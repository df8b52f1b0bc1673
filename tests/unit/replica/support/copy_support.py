"""Servers whose replicas can be copied: the real services over the simulated network."""

import json
from typing import cast

import msgspec

from nyala.admin.fencing import Fence, OrderFence
from nyala.common.errors import Unavailable
from nyala.common.ids import OpId
from nyala.common.options import Options
from nyala.copying.service import CopySourceService, CopyTargetService
from nyala.datadir.identity import Identity
from nyala.datadir.instance import Instance
from nyala.replica.copy.protocol import ENDED, CopyFile, CopyStage
from nyala.replica.state_machine import FlushPoint
from nyala.replica.status import State
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run
from tests.unit.replica.support.replica_support import (
    GROUP,
    AddingMachine,
    Fleet,
    HostProgram,
    uuid_of,
)

PARTS = 3
OPTIONS = Options(wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=700)
LIMITED = msgspec.structs.replace(OPTIONS, copy_rate_bytes=1000)
"""Options under which copies take seconds, so that tests can interfere."""


class Checkpoint:
    def __init__(self, machine):
        self.machine = machine
        self.flush_point = machine.flush_point
        self.manifest_name = "state"
        self.manifest_bytes = b""
        self.files: tuple[CopyFile, ...] = ()
        if machine.files.exists(machine.path):
            self.manifest_bytes = machine.files.read(machine.path)
            names = json.loads(self.manifest_bytes)["parts"]
            size = machine.files.size
            self.files = tuple(CopyFile(n, size(f"{machine.directory}/{n}")) for n in names)
        machine.held.append(self)

    def release(self):
        if self in self.machine.held:
            self.machine.held.remove(self)
            self.machine.sweep()


class PartsMachine(AddingMachine):
    """As AddingMachine, with several immutable files named by a manifest."""

    def __init__(self, files, directory):
        self.files, self.directory, self.path = files, directory, f"{directory}/state"
        self.sums, self.runs, self.groups, self.closed = {}, 0, [], False
        self.held, self.parts, self._bytes, self._flush_point = [], [], 0, FlushPoint()
        if files.exists(self.path) and files.size(self.path):
            state = json.loads(files.read(self.path))
            self.parts = state["parts"]
            whole = b"".join(files.read(f"{directory}/{n}") for n in self.parts)
            content = json.loads(whole)
            self.sums = content["sums"]
            term, index, stamp, extra = state["cut"]
            assert content["index"] == index, "the files are not of the manifest's cut"
            self._flush_point = FlushPoint(OpId(term, index), stamp, bytes.fromhex(extra))
            self.sweep()

    def prepare_flush(self, flush_point):
        if flush_point.op == self._flush_point.op:
            return None
        at = [flush_point.op.term, flush_point.op.index, flush_point.stamp, flush_point.extra.hex()]
        padding = "x" * 3000
        whole = json.dumps(
            {"sums": self.sums, "index": flush_point.op.index, "padding": padding}
        ).encode()
        names = [f"part-{flush_point.op.index}-{k}" for k in range(PARTS)]
        step = -(-len(whole) // PARTS)
        state = json.dumps({"parts": names, "cut": at}).encode()
        self._bytes = 0

        def install():
            self.files.rename(self.path + ".new", self.path)
            self.files.sync_dir(self.directory)
            self._flush_point, self.parts = flush_point, names
            self.sweep()

        def build():
            for k, name in enumerate(names):
                self.files.write_new(f"{self.directory}/{name}", [whole[k * step : (k + 1) * step]])
            self.files.write_new(self.path + ".new", [state])
            self.files.sync_dir(self.directory)
            return install

        return build

    def checkpoint(self):
        assert not self.closed
        return Checkpoint(self)

    def sweep(self):
        kept = {"state", *self.parts, *(f.name for c in self.held for f in c.files)}
        for name in self.files.list(self.directory):
            if name not in kept and not name.endswith(".new"):
                self.files.remove(f"{self.directory}/{name}")


class Known:
    """An identity with the same interface."""

    def __init__(self, uuid, cluster_id="one"):
        self.uuid = uuid
        self.instance = Instance(uuid, "tserver", cluster_id)


class CopyProgram(HostProgram):
    """A replica host with the services of copies."""

    machine = PartsMachine

    def __init__(self, env, transport, uuid, options, cluster_id="one"):
        super().__init__(env, transport, uuid, options)
        self.identity = Known(uuid, cluster_id)

    def handlers(self):
        def copies():
            if self.host is None:
                raise Unavailable("this server is starting; retry")
            return self.host.copies

        identity = cast("Identity", self.identity)  # same interface
        source = CopySourceService(identity, copies)
        orders = OrderFence(self.env, identity, Fence())
        target = CopyTargetService(self.env, identity, copies, orders.check)
        return {**source.handlers(), **target.handlers()}


class CopyFleet(Fleet):
    """`servers` hosts; groups are made on the first `members` of them."""

    def __init__(self, loop, servers, members, options):
        super().__init__(loop, servers, options)
        self.members = members
        self.config = self.configuration(range(members))
        self.program(options)

    def program(self, options, **more):
        for number, process in enumerate(self.processes):
            process.program = lambda env, transport, n=number: CopyProgram(
                env, transport, uuid_of(n), options, **more
            )

    async def start(self, groups=(GROUP,)):
        for number in range(len(self.processes)):
            await self.boot(number)
            if number < self.members:
                for group in groups:
                    await self.create(number, group)
        return self

    async def create(self, number, group, config=None):
        files = self.processes[number].env.files
        made = self.host(number).create_replica(
            group, config or self.config, lambda d: PartsMachine(files, d)
        )
        return await self.as_(number, made)

    # ---- operator's requests ---------------------------------------------------------------------

    async def ask(self, number, method, request):
        """Call a server's public port, as an operator on the machine of another server."""
        caller = next(n for n in self.alive() if n != number)
        env = self.processes[caller].env
        assert env is not None
        address = f"s{number}:7"
        return await self.as_(caller, env.rpc.call(address, method, request, timeout_ms=5000))

    async def order(
        self, target, source, *, group=GROUP, force=False, uuid=None, address=None, cluster="one"
    ):
        request = pb.StartCopyRequest(
            destination_uuid=uuid_of(target),
            cluster_id=cluster,
            tablet_id=group,
            source_uuid=uuid or uuid_of(source),
            source_address=address or f"s{source}:7",
            force=force,
        )
        return (await self.ask(target, methods.START_COPY, request)).copy

    def progress(self, target, group=GROUP):
        found = self.host(target).copies.progress([group])
        return found[0] if found else None

    def stage(self, target, group=GROUP):
        progress = self.progress(target, group)
        return None if progress is None else progress.stage

    async def copied(self, target, *, group=GROUP, timeout_ms=60_000):
        """Wait until a copy is an active replica, member or not."""
        await self.until(
            lambda: self.stage(target, group) in (CopyStage.WAITING, *ENDED), "copied", timeout_ms
        )
        progress = self.progress(target, group)
        assert progress.stage in (CopyStage.WAITING, CopyStage.DONE), progress
        return progress

    async def refused(self, target, *, group=GROUP, timeout_ms=120_000):
        """Wait until a copy has failed; return the reason."""
        await self.until(lambda: self.stage(target, group) in ENDED, "ended", timeout_ms)
        progress = self.progress(target, group)
        assert progress.stage is CopyStage.FAILED, progress
        return progress.error

    def leftovers(self, number, group=GROUP):
        """Return the paths of a group that a server's disk has."""
        files = (
            self.processes[number].disk.mount()
            if not self.processes[number].alive
            else (self.processes[number].env.files)
        )
        found = [f"data/{group}"] if files.exists(f"/data/data/{group}") else []
        found += [f"copy/{n}" for n in files.list("/data/copy")]
        found += [
            f"{d}/{group}" for d in ("cmeta", "superblock") if files.exists(f"/data/{d}/{group}")
        ]
        return found

    async def restart_after_power_cut(self, number):
        self.processes[number].kill(power_cut=True)
        await self.restart(number)

    def sessions(self):
        return sum(len(self.host(n).copies.sessions) for n in self.alive())

    def running(self, number, group=GROUP):
        replica = self.host(number).find(group)
        return replica is not None and replica.state is State.RUNNING


def scenario(servers=4, members=3, options=None, start=True, max_time_s=900):
    """Run an async test function with a fleet whose last servers have no replica yet."""
    options = options or OPTIONS

    def decorate(fn):
        def wrapped():
            async def main(loop):
                fleet = CopyFleet(loop, servers, members, options)
                if start:
                    await fleet.start()
                await fn(fleet)
                for process in fleet.processes:
                    assert not process.failures, process.failures

            run(main, max_time_s=max_time_s)

        wrapped.__name__ = fn.__name__
        wrapped.__doc__ = fn.__doc__
        wrapped.__module__ = fn.__module__
        return wrapped

    return decorate
