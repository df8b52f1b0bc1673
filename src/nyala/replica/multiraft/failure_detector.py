"""Failure detector for servers, on which quiesced groups rely, and the liveness that this server announces.

Every batch carries its sender's incarnation and epoch. A batch confirms all quiesced replicas of its sender
but those that stopped: each one that stops increments the epoch and is named for a while, so that a receiver
that missed a name sees it by the epoch, and wakes all groups that rely on the sender. Time is in ticks. Only
progress depends on this, never safety (docs/internals/many-groups.md). Pure; on the loop only.
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


class _Peer:
    __slots__ = ("epoch", "heard_at", "incarnation", "silent")

    def __init__(self) -> None:
        self.incarnation = 0
        self.epoch = 0
        self.heard_at = 0
        self.silent = True


class FailureDetector:
    """Failure detector of one process; `server in detector`: the server is absent.

    Args:
        incarnation: number that increases with each start of this server.
        pace: options with heartbeat and election ticks.

    Attributes:
        epoch: number of groups that stopped here in this incarnation.
        left: the latest of them, newest last.
    """

    def __init__(self, incarnation: int, pace: RaftOptions) -> None:
        self.incarnation = incarnation
        self.epoch = 0
        self.left: tuple[TabletId, ...] = ()
        self._pace = pace
        self._now = 0
        self._left: deque[tuple[int, TabletId]] = deque(maxlen=NAMED_GROUPS)  # (until, group)
        self._peers: dict[ServerUuid, _Peer] = {}
        self._speak_until: dict[ServerUuid, int] = {}
        self._sleepers: dict[TabletId, tuple[ServerUuid, ...]] = {}
        self._on: dict[ServerUuid, dict[TabletId, None]] = {}  # quiesced groups by server

    def __len__(self) -> int:
        return len(self._sleepers)

    def __contains__(self, server: object) -> bool:
        peer = self._peers.get(ServerUuid(str(server)))
        heard_at = 0 if peer is None else peer.heard_at
        return self._now - heard_at >= ABSENT_TIMEOUTS * self._pace.election_ticks

    # ---- groups of this server -------------------------------------------------------------------

    def asleep(self, group: TabletId, servers: Iterable[ServerUuid]) -> None:
        """Note that a group is quiesced here, and is to be woken when one of these servers may fail."""
        self.awake(group)
        self._sleepers[group] = tuple(servers)
        for server in self._sleepers[group]:
            self._on.setdefault(server, {})[group] = None

    def awake(self, group: TabletId) -> None:
        """Note that a group is not quiesced any more."""
        for server in self._sleepers.pop(group, ()):
            on = self._on[server]
            del on[group]
            if not on:
                del self._on[server]

    def sleeps(self, group: TabletId) -> bool:
        """Return whether a group is quiesced here."""
        return group in self._sleepers

    def leave(self, group: TabletId, members: Iterable[ServerUuid]) -> None:
        """Note that a replica stopped; its group's members get keepalives with its name for a while."""
        self.awake(group)
        until = self._soon()
        self.epoch += 1
        self._left.append((until, group))
        self._name()
        for server in members:
            self._speak_until[server] = until

    def _name(self) -> None:
        self.left = tuple(group for _, group in self._left)

    def _soon(self) -> int:
        return self._now + NAMED_TIMEOUTS * self._pace.election_ticks

    # ---- other servers ---------------------------------------------------------------------------

    def hear(self, batch: PeerBatch) -> list[TabletId]:
        """Record the liveness that a batch announces; return the groups to be woken by it."""
        server = batch.sender
        peer = self._peers.get(server)
        if peer is None:
            peer = self._peers[server] = _Peer()
        said = (batch.incarnation, batch.epoch)
        if not batch.incarnation or said < (peer.incarnation, peer.epoch):
            return []  # without liveness, or an old batch
        anew = peer.silent or batch.incarnation != peer.incarnation
        gone = batch.epoch - peer.epoch
        peer.incarnation, peer.epoch = said
        peer.heard_at, peer.silent = self._now, False
        if anew:
            self._speak_until[server] = self._soon()  # so that it hears of us, too
        elif not gone:
            return []
        on = self._on.get(server, {})
        if anew or gone > len(batch.left):
            return list(on)
        return [group for group in batch.left[-gone:] if group in on]

    def vouched(self, batch: PeerBatch) -> bool:
        """Return whether a batch is its sender's latest, so that its offers to quiesce count."""
        peer = self._peers.get(batch.sender)
        latest = None if peer is None else (peer.incarnation, peer.epoch)
        return bool(batch.incarnation) and latest == (batch.incarnation, batch.epoch)

    def end(self, server: ServerUuid) -> list[TabletId]:
        """Note that a server's process has exited; return the groups to be woken by it."""
        peer = self._peers.get(server)
        if peer is None or peer.silent:
            return []
        peer.silent = True
        return list(self._on.get(server, {}))

    # ---- time ------------------------------------------------------------------------------------

    def tick(self) -> list[TabletId]:
        """Process a tick; return the groups to be woken because a server became silent."""
        self._now += 1
        while self._left and self._left[0][0] <= self._now:
            self._left.popleft()
            self._name()
        roused: dict[TabletId, None] = {}
        for server, peer in self._peers.items():
            if not peer.silent and self._now - peer.heard_at >= self._pace.election_ticks:
                peer.silent = True
                roused.update(self._on.get(server, {}))
        return list(roused)

    def due(self) -> Mapping[ServerUuid, object]:
        """Return, once a heartbeat interval, the servers to which a keepalive is due."""
        if self._now % self._pace.heartbeat_ticks:
            return {}
        self._speak_until = {s: t for s, t in self._speak_until.items() if t > self._now}
        return {**self._on, **self._speak_until}
