"""Moves of replicas as faults: copied, added, promoted, removed, deleted, witnesses created and filled.

Each step is drawn from those that an operator's tool would take now, so that moves are started, interrupted
and continued by others, in any order. Orders of copies are the product's calls.
No step leaves fewer than three voters with all committed entries, or fewer than two of them with
data; only replicas that are no members are deleted, by compare-and-set on their configuration.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid
from nyala.raft.membership import Configuration, Member
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.replica import Replica
from nyala.replica.state_machine import FlushPoint
from nyala.replica.status import State
from nyala.replica.witness import Witness
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.stores import GROUP
from tests.sim.world.process import SimProcess

LEAST_VOTERS = 3
MOST_VOTERS = 5
NEAR = 300
"""Number of entries that a caught-up member may lack."""
ORDER_MS = 1500
SETTLE_S = 90
HELD, HELD_S = "sessions of copies are held for ever", 15
"""Failure when a source keeps what copies need after their end, and the time in which it must release it."""
Work = Callable[[], Awaitable[None]]


class Has(Enum):
    """State of the group's replica at a server."""

    UNKNOWN = "nobody knows"
    NOTHING = "nothing"
    HALF = "half a copy"
    STOPPED = "what could not be deleted"
    TOMBSTONE = "a tombstone"
    WITNESS = "a witness"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Step:
    """One possible step; `rank` orders the steps after healing."""

    rank: int
    text: str
    work: Work


class Mover:
    """Moves the replicas of one group.

    Args:
        cluster: of `MovingServer`s.
        rng: source of the choices.
    """

    def __init__(self, cluster: Any, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._loop = cluster.loop
        self._env = cluster.new_process().open()
        self._seen: dict[tuple[str, int, int], None] = {}

    # ---- under faults ------------------------------------------------------------------------------

    async def step(self) -> None:
        """Take one of the steps that are possible now."""
        self._count()
        found = self._leading()
        if found is None:
            return
        steps = list(self._steps(*found))
        if steps:
            step = self._rng.choice(steps)
            self._loop.trace.note("move", step.text)
            await step.work()

    def _leading(self) -> tuple[SimProcess, RaftNode] | None:
        leader = self._cluster.leader()
        if leader is None or leader.server is None or leader.server.node is None:
            return None
        return leader, leader.server.node

    def _count(self) -> None:
        """Count the copies that have ended, or have become replicas, since the last call."""
        for process in self._cluster.servers:
            server = process.server
            if not process.alive or server is None or server.host is None:
                continue
            for copy in server.host.copies.progress():
                key = (process.name, process.starts, copy.began_us)
                over = copy.stage in (
                    CopyStage.WAITING,
                    CopyStage.DONE,
                    CopyStage.FAILED,
                    CopyStage.CANCELLED,
                )
                if over and key not in self._seen:
                    self._seen[key] = None
                    good = copy.stage in (CopyStage.WAITING, CopyStage.DONE)
                    what = "copied" if good else "copy_ended"
                    self._loop.trace.note(what, f"{process.name} {copy.stage.value} {copy.error}")

    def has(self, process: SimProcess) -> Has:
        """Return the state of the group's replica at a server."""
        if not process.alive or process.server is None or process.server.host is None:
            return Has.UNKNOWN
        replica: Replica | None = process.server.replica
        if replica is None:
            return Has.NOTHING
        if replica.state is State.TOMBSTONED:
            return Has.TOMBSTONE
        if replica.member is None:
            if replica.error is None:
                return Has.UNKNOWN
            return Has.STOPPED if replica.tombstone_record().votes else Has.HALF
        witness = isinstance(replica.member.applier.machine, Witness)
        return Has.WITNESS if witness else Has.DATA

    # ---- possible steps ----------------------------------------------------------------------------

    def _steps(self, leader: SimProcess, node: RaftNode) -> Iterator[Step]:
        config = node.core.configs.active
        stuck = {p.uuid for p in node.status().peers if p.needs_copy}
        for name, me in self._cluster.members.items():
            process, now = self._cluster.server(name), config.get(me.uuid)
            has = self.has(process)
            if now is None:
                yield from self._of_stranger(leader, node, process, me, has)
            else:
                yield from self._of_member(leader, node, process, now, has, me.uuid in stuck)

    def _of_stranger(
        self, leader: SimProcess, node: RaftNode, process: SimProcess, me: Member, has: Has
    ) -> Iterator[Step]:
        config, free = node.core.configs.active, self._room(node)
        if has in (Has.NOTHING, Has.HALF, Has.TOMBSTONE):
            yield self._copy(leader, process, 6)
        if has is Has.NOTHING and free and self._sound(leader, node, None):
            yield Step(9, f"witness on {process.name}", lambda: self._witness(leader, process, me))
        if has is Has.DATA and len(config.members) < MOST_VOTERS:
            new = replace(me, voter=False, promote=True)
            yield self._change(leader, ChangeKind.ADD, new, 5)
        if has in (Has.DATA, Has.WITNESS, Has.STOPPED):
            yield Step(7, f"delete on {process.name}", lambda: self._delete(leader, process))

    def _of_member(
        self, leader: SimProcess, node: RaftNode, process: SimProcess, now: Member, has: Has, stuck: bool
    ) -> Iterator[Step]:  # fmt: skip
        if has in (Has.NOTHING, Has.HALF, Has.TOMBSTONE) or (has is Has.WITNESS and not stuck):
            yield self._copy(leader, process, 1)
        if has is Has.STOPPED:
            yield Step(1, f"delete on {process.name}", lambda: self._delete(leader, process))
        if has is Has.DATA and not now.electable:
            yield self._change(leader, ChangeKind.MODIFY, replace(now, electable=True), 2)
        if not now.voter:
            yield self._change(leader, ChangeKind.REMOVE, now, 0 if stuck else 8)
            if not now.promote and has is Has.DATA:
                yield self._change(leader, ChangeKind.MODIFY, replace(now, promote=True), 3)
        elif self._sound(leader, node, now.uuid):
            yield self._change(leader, ChangeKind.REMOVE, now, 0 if stuck else 4)
            demoted = replace(now, voter=False, promote=False)
            yield self._change(leader, ChangeKind.MODIFY, demoted, 9)

    def _room(self, node: RaftNode) -> bool:
        return len(node.core.configs.active.members) < MOST_VOTERS

    def _sound(self, leader: SimProcess, node: RaftNode, without: ServerUuid | None) -> bool:
        """Return whether all remaining voters have the committed entries, and two of them data."""
        config, commit = node.core.configs.active, node.core.log.committed
        near = {p.uuid for p in node.status().peers if p.match and p.match + NEAR >= commit}
        near.add(node.core.uuid)
        voters = [u for u in config.voters if u != without]
        data = [u for u in voters if self.has(self._cluster.by_uuid(u)) is Has.DATA]
        leaders = [u for u in data if config.may_lead(u)]
        return len(voters) >= LEAST_VOTERS and near.issuperset(voters) and len(leaders) >= 2

    # ---- execution of steps ---------------------------------------------------------------------------

    def _copy(self, leader: SimProcess, target: SimProcess, rank: int) -> Step:
        return Step(
            rank, f"copy from {leader.name} to {target.name}", lambda: self._order(leader, target)
        )

    async def _order(self, source: SimProcess, target: SimProcess) -> None:
        members = self._cluster.members
        cancel = self._rng.random() < 0.05
        try:
            if cancel:
                request = pb.CancelCopyRequest(
                    destination_uuid=members[target.name].uuid, cluster_id="sim", tablet_id=GROUP
                )
                await self._env.rpc.call(
                    target.address, methods.CANCEL_COPY, request, timeout_ms=ORDER_MS
                )
            else:
                await self.copy(source, target)
        except NyalaError as err:
            self._refused(err)

    async def copy(self, source: SimProcess, target: SimProcess) -> None:
        """Order a copy, which begins after this call."""
        members = self._cluster.members
        order = pb.StartCopyRequest(
            destination_uuid=members[target.name].uuid,
            cluster_id="sim",
            tablet_id=GROUP,
            source_uuid=members[source.name].uuid,
            source_address=source.address,
        )
        await self._env.rpc.call(target.address, methods.START_COPY, order, timeout_ms=ORDER_MS)

    def _change(self, leader: SimProcess, kind: ChangeKind, member: Member, rank: int) -> Step:
        name = self._cluster.by_uuid(member.uuid).name
        words = ["voter" if member.voter else "non-voter"]
        words += ["promote"] * member.promote + ["witness"] * (not member.electable)
        text = f"{leader.name}: {kind.value} {name} {' '.join(words)}"
        return Step(rank, text, lambda: self._ask(leader, Change(kind, member)))

    async def _ask(self, leader: SimProcess, change: Change) -> None:
        if leader.alive and leader.server is not None:
            self._loop.trace.note("change_config", f"{leader.name} {change.kind.value}")
            leader.run(self._asked, leader.server, change)

    async def _asked(self, server: Any, change: Change) -> None:
        expected = server.node.core.configs.active.id if server.node is not None else None
        try:
            await server.change_config([change], expected)
        except NyalaError as err:
            self._refused(err)
        else:
            removed = change.kind is ChangeKind.REMOVE
            self._loop.trace.note("removed" if removed else "change_taken", change.member.uuid)

    async def _witness(self, leader: SimProcess, target: SimProcess, me: Member) -> None:
        """Make a witness that begins at the leader's commit index, and a voter of it."""
        if not (leader.alive and target.alive) or leader.server is None:
            return
        core = leader.server.node.core
        op = core.log.op_id(core.log.committed)
        if core.configs.committed.id != core.configs.active.id or not core.log.stamp(op.index):
            return
        start = FlushPoint(op, core.log.stamp(op.index))
        witness = replace(me, voter=True, promote=False, electable=False)
        config: Configuration = replace(
            core.configs.committed, members=(*core.configs.committed.members, witness)
        )
        target.run(self._made, target.server.host, config, start)
        await self._loop.delay(100_000)
        if self.has(target) is Has.WITNESS:
            await self._ask(leader, Change(ChangeKind.ADD, witness))

    async def _made(self, host: Any, config: Configuration, start: FlushPoint) -> None:
        try:
            await host.create_witness(GROUP, config, start)
        except (NyalaError, OSError) as err:
            self._refused(err)

    async def _delete(self, leader: SimProcess, target: SimProcess) -> None:
        """Delete a server's replica, sometimes, if it has no later configuration than the leader's."""
        if self.has(target) is Has.STOPPED:
            target.run(self._deleted, target.server.host)
            return
        known = leader.server.node.core.configs.committed.id
        before = target.server.replica.status().committed_config.id
        if before > known:
            return
        await self._loop.delay(self._rng.expovariate(1) * 100_000)
        if self.has(target) not in (Has.DATA, Has.WITNESS):
            return
        if target.server.replica.status().committed_config.id == before:
            self._loop.trace.note("delete", target.name)
            target.run(self._deleted, target.server.host)

    async def _deleted(self, host: Any) -> None:
        try:
            await host.delete_replica(GROUP)
        except (NyalaError, OSError) as err:
            self._refused(err)

    def _refused(self, err: Exception) -> None:
        self._loop.trace.note("move_refused", f"{type(err).__name__} {err}")

    # ---- after healing -----------------------------------------------------------------------------

    async def finish(self) -> None:
        """Complete started steps and one whole move after healing."""
        await self._settle()
        found = self._leading()
        assert found is not None, "settled without a leader"
        before = found[1].core.configs.active.voters
        target = next(
            p for p in self._cluster.servers if self._cluster.members[p.name].uuid not in before
        )
        goal = self._cluster.members[target.name].uuid
        await self._settle(goal)
        await self._cluster.until(
            lambda: not any(len(s.server.host.copies.sessions) for s in self._cluster.servers),
            HELD, HELD_S,
        )  # fmt: skip

    async def _settle(self, wanted: ServerUuid | None = None) -> None:
        """Take the steps in the order of their rank until three members have all entries."""
        end = self._loop.time() + SETTLE_S
        while True:
            self._count()
            found = self._leading()
            steps = sorted(self._steps(*found), key=lambda s: s.rank) if found else []
            todo = [s for s in steps if self._pressing(s, found, wanted)] if found else []
            if found and not todo and self._settled(found[1], wanted):
                return
            texts = [s.text for s in todo]
            assert self._loop.time() < end, f"the moves do not end: {texts}, {self._standing()}"
            if todo:
                self._loop.trace.note("move", f"to the end: {todo[0].text}")
                await todo[0].work()
            await self._loop.delay(300_000)

    def _pressing(
        self, step: Step, found: tuple[SimProcess, RaftNode] | None, wanted: ServerUuid | None
    ) -> bool:
        assert found is not None
        config = found[1].core.configs.active
        name = "" if wanted is None else self._cluster.by_uuid(wanted).name
        if step.rank in (0, 1, 2, 3):
            return True
        if step.rank == 4:  # remove a surplus one, not the wanted one
            return len(config.voters) > LEAST_VOTERS and not (name and f" {name} " in step.text)
        coming = wanted is not None and config.get(wanted) is None
        if step.rank in (5, 6) and self._few(found[1]):
            return True
        if step.rank in (5, 6):
            return coming and name in step.text.split()
        return step.rank == 7 and not (name and name in step.text.split())

    def _few(self, node: RaftNode) -> bool:
        """Return whether a member that can never catch up is to be replaced."""
        stuck = [p.uuid for p in node.status().peers if p.needs_copy]
        return bool(stuck) and len(node.core.configs.active.voters) <= LEAST_VOTERS

    def _settled(self, node: RaftNode, wanted: ServerUuid | None) -> bool:
        configs = node.core.configs
        members = configs.active.members
        strangers = [n for n, m in self._cluster.members.items() if not configs.active.get(m.uuid)]
        return (
            configs.active.id == configs.committed.id
            and len(members) == LEAST_VOTERS
            and all(m.voter and m.electable for m in members)
            and all(self.has(self._cluster.by_uuid(m.uuid)) is Has.DATA for m in members)
            and not any(
                self.has(self._cluster.server(n)) in (Has.DATA, Has.WITNESS, Has.STOPPED)
                for n in strangers
            )
            and (wanted is None or configs.active.get(wanted) is not None)
        )

    def _standing(self) -> str:
        return ", ".join(f"{p.name}: {self.has(p).value}" for p in self._cluster.servers)
