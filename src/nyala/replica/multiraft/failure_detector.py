"""Failure detector for servers, on which quiesced groups rely, and the liveness that this server announces.

Every batch carries its sender's incarnation and the number of its replicas that have stopped in it. A batch
confirms all quiesced replicas of its sender but those. The groups of the latest ones are named for a while; a
receiver that missed a name notices this by the number, and wakes all groups that rely on the sender. Time is
in ticks. Only progress depends on this, never safety (docs/internals/many-groups.md). Pure; on the loop only.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import PeerBatch
from nyala.raft.options import RaftOptions

NAMED_TIMEOUTS = 4
"""Number of minimum election timeouts for which a stopped group is named, and a new peer gets keepalives."""
NAMED_GROUPS = 32
"""Maximum number of groups that are named at a time: every batch carries the names."""
ABSENT_TIMEOUTS = 4
"""Number of minimum election timeouts without a batch after which a server is absent: groups quiesce without
it.
"""
KEPT_TIMEOUTS = 100
"""Number of minimum election timeouts without a batch after which a server's state is dropped."""


class _Peer:
    __slots__ = ("incarnation", "received_at", "silent", "stopped_count")

    def __init__(self) -> None:
        self.incarnation = 0
        self.stopped_count = 0
        self.received_at = 0
        self.silent = True


class FailureDetector:
    """Failure detector of one process; `server in detector`: the server is absent.

    Args:
        incarnation: number that increases with each start of this server.
        pace: options with heartbeat and election ticks.

    Attributes:
        stopped_count: number of groups that stopped here in this incarnation.
        stopped_groups: the latest of them, newest last.
    """

    def __init__(self, incarnation: int, pace: RaftOptions) -> None:
        self.incarnation = incarnation
        self.stopped_count = 0
        self.stopped_groups: tuple[TabletId, ...] = ()
        self._pace = pace
        self._now = 0
        self._stopped: deque[tuple[int, TabletId]] = deque(maxlen=NAMED_GROUPS)  # (until, group)
        self._peers: dict[ServerUuid, _Peer] = {}
        self._keepalive_until: dict[ServerUuid, int] = {}
        self._quiesced: dict[TabletId, tuple[ServerUuid, ...]] = {}
        self._relying: dict[ServerUuid, dict[TabletId, None]] = {}  # quiesced groups by server

    def __len__(self) -> int:
        return len(self._quiesced)

    def __contains__(self, server: object) -> bool:
        peer = self._peers.get(ServerUuid(str(server)))
        received_at = 0 if peer is None else peer.received_at
        return self._now - received_at >= ABSENT_TIMEOUTS * self._pace.election_ticks

    # ---- groups of this server -------------------------------------------------------------------

    def add_quiesced(self, group: TabletId, servers: Iterable[ServerUuid]) -> None:
        """Note that a group is quiesced here, and is to be woken when one of these servers may fail."""
        self.remove_quiesced(group)
        self._quiesced[group] = tuple(servers)
        for server in self._quiesced[group]:
            self._relying.setdefault(server, {})[group] = None

    def remove_quiesced(self, group: TabletId) -> None:
        """Note that a group is not quiesced any more."""
        for server in self._quiesced.pop(group, ()):
            on = self._relying[server]
            del on[group]
            if not on:
                del self._relying[server]

    def is_quiesced(self, group: TabletId) -> bool:
        """Return whether a group is quiesced here."""
        return group in self._quiesced

    def on_replica_stopped(self, group: TabletId, members: Iterable[ServerUuid]) -> None:
        """Note that a replica stopped; its group's members get keepalives with its name for a while."""
        self.remove_quiesced(group)
        until = self._naming_end()
        self.stopped_count += 1
        self._stopped.append((until, group))
        self._name()
        for server in members:
            self._keepalive_until[server] = until

    def _name(self) -> None:
        self.stopped_groups = tuple(group for _, group in self._stopped)

    def _naming_end(self) -> int:
        return self._now + NAMED_TIMEOUTS * self._pace.election_ticks

    # ---- other servers ---------------------------------------------------------------------------

    def receive(self, batch: PeerBatch) -> list[TabletId]:
        """Record the liveness that a batch announces; return the groups to be woken by it."""
        server = batch.sender
        peer = self._peers.get(server)
        if peer is None:
            peer = self._peers[server] = _Peer()
        announced = (batch.incarnation, batch.stopped_count)
        if not batch.incarnation or announced < (peer.incarnation, peer.stopped_count):
            return []  # without liveness, or an old batch
        restarted = peer.silent or batch.incarnation != peer.incarnation
        stopped = batch.stopped_count - peer.stopped_count
        peer.incarnation, peer.stopped_count = announced
        peer.received_at, peer.silent = self._now, False
        if restarted:
            self._keepalive_until[server] = self._naming_end()  # it needs this incarnation, too
        elif not stopped:
            return []
        on = self._relying.get(server, {})
        if restarted or stopped > len(batch.stopped_groups):
            return list(on)
        return [group for group in batch.stopped_groups[-stopped:] if group in on]

    def is_latest(self, batch: PeerBatch) -> bool:
        """Return whether a batch is its sender's latest, so that its offers to quiesce count."""
        peer = self._peers.get(batch.sender)
        latest = None if peer is None else (peer.incarnation, peer.stopped_count)
        return bool(batch.incarnation) and latest == (batch.incarnation, batch.stopped_count)

    def end(self, server: ServerUuid) -> list[TabletId]:
        """Note that a server's process has exited; return the groups to be woken by it."""
        peer = self._peers.get(server)
        if peer is None or peer.silent:
            return []
        peer.silent = True
        return list(self._relying.get(server, {}))

    # ---- time ------------------------------------------------------------------------------------

    def tick(self) -> list[TabletId]:
        """Process a tick; return the groups to be woken because a server became silent."""
        self._now += 1
        while self._stopped and self._stopped[0][0] <= self._now:
            self._stopped.popleft()
            self._name()
        woken: dict[TabletId, None] = {}
        timeout = self._pace.election_ticks
        for server, peer in list(self._peers.items()):
            without_batch = self._now - peer.received_at
            if not peer.silent and without_batch >= timeout:
                peer.silent = True
                woken.update(self._relying.get(server, {}))
            elif without_batch >= KEPT_TIMEOUTS * timeout and server not in self._relying:
                del self._peers[server]
        return list(woken)

    def idle_ticks(self) -> int:
        """Return the number of ticks that may be processed together.

        They end when a keepalive is due, and before a server may become silent.
        """
        pace = self._pace
        found = pace.election_ticks
        if self._relying or self._keepalive_until:
            found = pace.heartbeat_ticks - self._now % pace.heartbeat_ticks
        heard = (p.received_at for p in self._peers.values() if not p.silent)
        silent_at = min(heard, default=self._now) + pace.election_ticks
        return min(found, silent_at - 1 - self._now)

    def due(self) -> Mapping[ServerUuid, object]:
        """Return, once a heartbeat interval, the servers to which a keepalive is due."""
        if self._now % self._pace.heartbeat_ticks:
            return {}
        self._keepalive_until = {s: t for s, t in self._keepalive_until.items() if t > self._now}
        return {**self._relying, **self._keepalive_until}
