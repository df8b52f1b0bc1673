"""Raft's core under the simulator with a minimal host: one group, one log.

It tests the core alone, without `replica/` and `tablet/`. Mistakes
can be planted here to test the checkers.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nyala.common.errors import NotLeader, OutcomeUnknown, Unavailable
from nyala.common.ids import CommittedOperation, OpId, ServerUuid
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.membership import Configuration
from nyala.raft.messages import DurablePoint, Entry, EntryKind, HardState, PeerBatch
from nyala.raft.node import RaftNode
from nyala.raft.ready import Outgoing
from nyala.raft.reconfiguration.changes import Change
from nyala.replica.state_machine import Transport
from tests.sim.checkers.linearizability import Kind
from tests.sim.systems.kv import CHANGE, READ, KvMachine, encode_change
from tests.sim.systems.stores import GROUP, Store


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Planted mistakes.

    Attributes:
        stale_reads: a leader serves reads without a read round.
        early_acks: messages are sent before the sync that they depend on.
        forgets_votes: a term is written without its vote.
    """

    stale_reads: bool = False
    early_acks: bool = False
    forgets_votes: bool = False


@dataclass(slots=True)
class _Waiting:
    term: int
    future: asyncio.Future[bytes] = field(repr=False)


class CoreServer:
    """A member of the group.

    Args:
        env: the simulated world.
        transport: to the other members.
        uuid: this server.
        config: first configuration of the group.
        store: store of its log.
        mistakes: planted mistakes.
        addresses: peer addresses of all servers, members or not.
    """

    def __init__(
        self,
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        config: Configuration,
        store: Store,
        mistakes: Mistakes,
        addresses: dict[ServerUuid, str],
    ) -> None:
        self._env = env
        self._store = store
        self._transport = transport
        self._uuid = uuid
        self._config = config
        self._addresses = addresses
        self._mistakes = mistakes
        self._outbox: dict[ServerUuid, deque[Outgoing]] = {}
        self._durable = DurablePoint()
        self._writes: dict[int, _Waiting] = {}
        self._reads: list[tuple[int, asyncio.Future[int]]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.failed: BaseException | None = None
        self.machine: KvMachine
        self.node: RaftNode | None = None

    async def start(self) -> None:
        """Recover from the log and start the core."""
        files = self._env.files
        files.make_dir("/core")
        self._clock = HybridClock(self._env.clock, files, "/core/ceiling")
        self._clock.now()
        self._clock.keep(self._env.tasks)
        self.machine = KvMachine(files, "/core/unused")
        hard, entries = await self._store.open(self._env, self._uuid)
        draw = self._env.random.randrange
        self.node = RaftNode(self._uuid, self._config, hard, entries, random=draw)
        self._transport.receive(self._receive, self._lose)
        self._env.tasks.spawn(self._tick(), "ticks")

    @property
    def _core(self) -> RaftNode:
        if self.node is None:
            raise Unavailable("starting")
        return self.node

    def handlers(self) -> Handlers:
        """Change and Read."""
        return {CHANGE: self._change, READ: self._read}

    async def close(self) -> None:
        """Stop."""
        await self._env.tasks.close()

    async def _tick(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(50)
            self._clock.refresh()
            self._core.tick(self._clock.peek())
            self._pump()

    def _receive(self, batch: PeerBatch) -> None:
        if not self._clock.merge(max(batch.hlc, *(m.hlc for _, m in batch.messages))):
            return  # treated as lost: above the durable ceiling
        for _, message in batch.messages:
            self._core.step(message, self._clock.peek())
        self._pump()

    def _lose(self, server: ServerUuid) -> None:
        if self._core.peer_exited(server):
            self._pump()

    def _pump(self) -> None:
        """Process the core's output in the order of `Ready`."""
        while not (ready := self._core.ready()).empty:
            if ready.persist is not None or ready.append:
                done = functools.partial(self._synced, ready.point)
                hard = ready.persist
                if hard is not None and self._mistakes.forgets_votes:
                    hard = HardState(hard.term)
                self._store.append(hard, ready.append, done)
            for out in ready.send:
                self._outbox.setdefault(out.message.to, deque()).append(out)
            for read in ready.read:
                raise AssertionError(f"the whole log is cached, yet {read} is asked for")
            for entry in ready.apply:
                self._apply(entry)
            if ready.apply:
                self._core.applied(ready.apply[-1].id.index)
            if ready.confirmed is not None:
                self._confirm(ready.confirmed.round, ready.confirmed.index)
        self._send()

    def _send(self) -> None:
        for to, queue in self._outbox.items():
            messages = []
            while queue and (self._mistakes.early_acks or self._durable.covers(queue[0].after)):
                messages.append((GROUP, queue.popleft().message))
            if messages:
                batch = PeerBatch(self._uuid, to, self._clock.peek(), tuple(messages))
                self._transport.send(self._addresses[to], batch)

    def _synced(self, point: DurablePoint) -> None:
        self._durable = point
        self._core.durable(point)
        self._pump()

    def _apply(self, entry: Entry) -> None:
        results = [b""]
        if entry.kind is EntryKind.OPERATION:
            results = self.machine.apply([CommittedOperation(entry.id, entry.stamp, entry.payload)])
        waiting = self._writes.pop(entry.id.index, None)
        if waiting is not None and not waiting.future.done():
            if waiting.term == entry.id.term:
                waiting.future.set_result(results[0])
            else:
                waiting.future.set_exception(Unavailable("another leader's entry took its place"))
        for index, future in self._applied_waiters:
            if index <= entry.id.index and not future.done():
                future.set_result(None)
        self._applied_waiters = [w for w in self._applied_waiters if not w[1].done()]

    def _confirm(self, number: int, index: int) -> None:
        for round_, future in self._reads:
            if round_ <= number and not future.done():
                future.set_result(index)
        self._reads = [r for r in self._reads if not r[1].done()]

    def _not_leader(self) -> NotLeader:
        config = self._core.core.configs.active
        leader = None if self._core.leader is None else config.get(self._core.leader)
        return NotLeader("not the leader", {} if leader is None else {"address": leader.address})

    async def _change(self, request: list[Any]) -> bool:
        kind, key, value = request
        payload = encode_change(Kind(kind), key, value)
        op = self._core.propose(payload, max(self._clock.now(), self._core.last_stamp + 1))
        if op is None:
            raise self._not_leader()
        future = self._env_future()
        self._writes[op.index] = _Waiting(op.term, future)
        self._pump()
        self._env.tasks.spawn(self._expire(future), "write deadline")
        return bool(await future == b"\x01")

    async def change_config(self, changes: Sequence[Change], expected: OpId | None) -> None:
        """Change the members; returns when the change is in the log."""
        stamp = max(self._clock.now(), self._core.last_stamp + 1)
        try:
            self._core.change_config(changes, stamp, expected)
        finally:
            self._pump()

    def transfer(self, to: ServerUuid) -> None:
        """Transfer leadership."""
        self._core.transfer(to)
        self._pump()

    async def _expire(self, future: asyncio.Future[bytes]) -> None:
        await self._env.tasks.sleep_ms(3000)
        if not future.done():
            future.set_exception(OutcomeUnknown("no majority in time"))

    def _env_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _read(self, request: list[int]) -> int | None:
        if not self._mistakes.stale_reads:
            round_ = self._core.read_index(self._clock.now())
            if round_ is None:
                raise self._not_leader()
            future = self._env_future()
            self._reads.append((round_, future))
            self._pump()
            index = await future
            if self._core.status().applied < index:
                applied = self._env_future()
                self._applied_waiters.append((index, applied))
                await applied
        elif not self._core.is_leader:
            raise self._not_leader()
        return self.machine.rows.get(request[0])
