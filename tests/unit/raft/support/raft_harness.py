"""A group of cores in memory, with a disk and a network that the test controls.

The harness keeps exactly the host's rules (raft/ready.py): a batch is
durable after `sync`, a message is sent when its index is durable, a crash removes what was not
synced. After every step it checks the invariants of each core, of the group, and over time: one leader a
term, and committed and acknowledged entries never change.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.messages import AnyMessage, DurablePoint, Entry, HardState
from nyala.raft.node import RaftNode
from nyala.raft.options import RaftOptions
from nyala.raft.ready import Outgoing, ReadConfirmed, Ready
from nyala.raft.reconfiguration.changes import Change
from tests.sim.checkers import raft_invariants

Watch = Callable[[str, Ready], None]


@dataclass
class Disk:
    """State that survives a crash; `pending` does not."""

    hard: HardState = field(default_factory=HardState)
    config: Configuration | None = None  # the last committed one (consensus metadata)
    log: dict[int, Entry] = field(default_factory=dict)
    pending: list[Ready] = field(default_factory=list)
    base: OpId = NO_OP  # before the first entry of a log that began with a copy
    base_stamp: int = 0
    cut: int = 0  # cut of the state machine's files
    collected: int = 0  # entries up to here can no longer be read back for a peer
    held: bool = False  # batches wait for an explicit sync

    def write(self, ready: Ready) -> None:
        if ready.persist is not None:
            self.hard = ready.persist
        for entry in ready.append:
            for index in [i for i in self.log if i >= entry.id.index]:
                del self.log[index]
            self.log[entry.id.index] = entry

    def read(self, first: int, count: int = 3) -> list[Entry]:
        return (
            []
            if first <= self.collected
            else [e for e in self.entries() if e.id.index >= first][:count]
        )

    def entries(self) -> list[Entry]:
        return [self.log[i] for i in sorted(self.log)]


@dataclass
class Server:
    """One member: its core, its disk, and the writes that wait for it."""

    uuid: ServerUuid
    disk: Disk
    node: RaftNode
    waiting: list[Outgoing] = field(default_factory=list)
    durable: DurablePoint = field(default_factory=DurablePoint)
    applied: list[Entry] = field(default_factory=list)
    confirmed: list[ReadConfirmed] = field(default_factory=list)
    clock: int = 1
    alive: bool = True


class Cluster:
    """A group; sent messages are in `network` until they are delivered."""

    def __init__(
        self,
        uuids: Iterable[str],
        *,
        nonvoters: Iterable[str] = (),
        witnesses: Iterable[str] = (),
        spares: Iterable[str] = (),
        options: RaftOptions | None = None,
        random: Callable[[str], Callable[[int], int]] | None = None,
        watch: Watch | None = None,
    ) -> None:
        without_vote, never = set(nonvoters), set(witnesses)
        self.config: Configuration = initial(
            Member(ServerUuid(u), f"{u}:1", voter=u not in without_vote, electable=u not in never)
            for u in (*uuids, *without_vote)
        )
        self.options = options or RaftOptions()
        self.random = random or (lambda uuid: lambda n: (int(uuid) - 1) % n)
        self.watch = watch
        self.network: list[AnyMessage] = []
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, Entry] = {}
        self.servers: dict[str, Server] = {}
        for uuid in (*(m.uuid for m in self.config.members), *spares):
            disk = Disk()
            self.servers[uuid] = Server(ServerUuid(uuid), disk, self._boot(uuid, disk))

    def __getitem__(self, uuid: str) -> RaftNode:
        return self.servers[uuid].node

    @property
    def alive(self) -> list[Server]:
        return [s for s in self.servers.values() if s.alive]

    def _boot(self, uuid: str, disk: Disk) -> RaftNode:
        config = disk.config or self.config
        return RaftNode(
            ServerUuid(uuid), config, disk.hard, disk.entries(), base=disk.base,
            base_stamp=disk.base_stamp, commit_index=max(disk.cut, config.id.index),
            applied_index=disk.cut, options=self.options, random=self.random(uuid),
        )  # fmt: skip

    # ---- events of one server ------------------------------------------------------------------

    def now(self, server: Server, seen: int = 0) -> int:
        server.clock = max(server.clock, seen) + 1
        return server.clock

    def tick(self, uuid: str, ticks: int = 1) -> None:
        for _ in range(ticks):
            server = self.servers[uuid]
            server.node.tick(self.now(server))
            self.work(server)

    def propose(self, uuid: str, payload: str) -> OpId | None:
        server = self.servers[uuid]
        stamp = self.now(server, server.node.last_stamp)
        return server.node.propose(payload.encode(), stamp)

    def change(self, uuid: str, *changes: Change, expected: OpId | None = None) -> OpId:
        server = self.servers[uuid]
        stamp = self.now(server, server.node.last_stamp)
        try:
            return server.node.change_config(changes, stamp, expected)
        finally:
            self.work(server)

    def unsafe_config(self, uuid: str, keep: Sequence[ServerUuid], term: int = 0) -> OpId:
        """Make `keep` the only members; committed entries that this server lacks are no longer required."""
        server = self.servers[uuid]
        last = server.node.last
        op = server.node.unsafe_change_config(keep, self.now(server, server.node.last_stamp), term)
        self.committed = {i: e for i, e in self.committed.items() if i <= last.index}
        self.work(server)
        return op

    def _given_up(self, uuid: str) -> bool:
        return any(uuid in s.node.core.configs.active.lost for s in self.servers.values())

    def read(self, uuid: str) -> int | None:
        server = self.servers[uuid]
        return server.node.read_index(self.now(server))

    def deliver(self, message: AnyMessage) -> None:
        server = self.servers.get(message.to)
        if server is None or not server.alive:
            return
        server.node.step(message, self.now(server, message.hlc))
        self.work(server)

    def crash(self, uuid: str, keep: int = 0) -> None:
        """Lose unsynced batches, except the first `keep` ones, which have reached the disk."""
        server = self.servers[uuid]
        for ready in server.disk.pending[:keep]:
            server.disk.write(ready)
        server.disk.pending.clear()
        server.waiting.clear()
        server.alive = False

    def restart(self, uuid: str) -> None:
        server = self.servers[uuid]
        server.alive, server.durable = True, DurablePoint()
        server.applied = [e for e in server.applied if e.id.index <= server.disk.cut]
        server.node = self._boot(uuid, server.disk)

    def copy(self, uuid: str, source: str) -> None:
        """Restart with the files of `source`: the log is empty after its cut, term and vote are kept."""
        server, core = self.servers[uuid], self[source].core
        cut = core.log.applied
        base, hard = core.log.op_id(cut), server.disk.hard
        server.disk = Disk(
            hard if hard.term >= base.term else HardState(base.term), config=core.configs.committed,
            base=base, base_stamp=core.log.stamp(cut), cut=cut, collected=cut,
        )  # fmt: skip
        server.waiting.clear()
        server.applied.clear()
        self.restart(uuid)

    def flush(self, uuid: str) -> None:
        """Flush applied entries to the state machine's files: a restart begins after them."""
        server = self.servers[uuid]
        server.disk.cut = server.node.status().applied

    # ---- the host's duties -----------------------------------------------------------------------

    def work(self, server: Server) -> None:
        """Process Readys until none has work."""
        while not (ready := server.node.ready()).empty:
            if self.watch is not None:
                self.watch(server.uuid, ready)
            server.waiting.extend(ready.send)
            if ready.persist is not None or ready.append:
                server.disk.pending.append(ready)
            for request in ready.read:
                server.node.entries_read(request.peer, server.disk.read(request.first_index))
            server.applied.extend(ready.apply)
            for entry in ready.apply:
                self._note_committed(server, entry)
            if ready.apply:
                server.node.applied(ready.apply[-1].id.index)
            if ready.config_committed is not None:
                server.disk.config = ready.config_committed
            if ready.confirmed is not None:
                server.confirmed.append(ready.confirmed)
            self._release(server)
            if not server.disk.held:
                while server.disk.pending:
                    self.sync_one(server)
        self.check(server)

    def sync(self, uuid: str) -> None:
        """Make everything handed over so far durable."""
        server = self.servers[uuid]
        while server.disk.pending:
            self.sync_one(server)
        self.work(server)

    def sync_one(self, server: Server) -> None:
        ready = server.disk.pending.pop(0)
        server.disk.write(ready)
        server.durable = ready.point
        server.node.durable(ready.point)
        self._release(server)

    def _release(self, server: Server) -> None:
        free = [o for o in server.waiting if server.durable.covers(o.after)]
        server.waiting = [o for o in server.waiting if not server.durable.covers(o.after)]
        self.network.extend(o.message for o in free)

    def settle(self, wants: Callable[[AnyMessage], bool] = lambda _: True) -> None:
        """Deliver until no wanted message is left; unwanted ones stay."""
        for server in self.alive:
            self.work(server)
        for _ in range(10_000):
            if not (batch := [m for m in self.network if wants(m)]):
                return
            self.network = [m for m in self.network if not wants(m)]
            for message in batch:
                self.deliver(message)
        raise AssertionError("messages never end")

    def elect(self, uuid: str) -> None:
        """Bring `uuid` to lead by its own timeout."""
        for other in self.alive:  # no member has a recent leader
            other.node.core.ticks_since_leader = self.options.election_ticks
        for _ in range(3):
            if self[uuid].is_leader:
                break
            self.tick(uuid, self[uuid].core.timeout - self[uuid].core.elapsed)
            self.settle()
        assert self[uuid].is_leader, self[uuid].status()
        self.heartbeat(uuid)

    def heartbeat(self, uuid: str) -> None:
        """Deliver a leader's heartbeat and its answers, so that commit indexes are known."""
        self.tick(uuid, self.options.heartbeat_ticks)
        self.settle()

    # ---- invariants over time --------------------------------------------------------------------

    def check(self, server: Server) -> None:
        node = server.node
        raft_invariants.check(node)
        if node.is_leader and not self._given_up(server.uuid):
            known = self.leaders.setdefault(node.term, server.uuid)
            assert known == server.uuid, f"{known} and {server.uuid} both led term {node.term}"
            self._check_complete(node)

    def _note_committed(self, server: Server, entry: Entry) -> None:
        if self._given_up(server.uuid):
            return
        known = self.committed.setdefault(entry.id.index, entry)
        assert known == entry, f"{server.uuid} applied {entry}, but {known} was committed"

    def _check_complete(self, node: RaftNode) -> None:
        """Check leader completeness (3.6.3): committed entries are in the leader's log."""
        for index, entry in self.committed.items():
            if entry.id.term < node.term and index > node.core.log.base.index:
                assert node.core.log.holds(entry.id), (
                    f"{node.core.log!r} lacks committed {entry.id}"
                )

    def check_all(self) -> None:
        raft_invariants.check_group(s.node for s in self.alive if not self._given_up(s.uuid))


def altered(message: AnyMessage, **changes: object) -> AnyMessage:
    """A copy of a message with other fields."""
    return replace(message, **changes)


def log_of(node: RaftNode) -> list[str]:
    """The ids in memory, for comparing."""
    entries = node.core.log.slice(node.core.log.first_cached, 1 << 62)
    return [str(e.id) for e in entries or ()]


__all__ = ["NO_OP", "Cluster", "Disk", "Server", "altered", "log_of"]
