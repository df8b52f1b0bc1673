"""The quiesced groups of a process, the events that wake them, and the ticks of the other groups.

It connects the Raft nodes, which quiesce and wake (`raft/roles/quiescence.py`), with the failure detector of
the servers that they rely on (`failure_detector.py`). On the loop only.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import AnyMessage, AppendEntries, AppendReply
from nyala.raft.node import RaftNode
from nyala.replica.multiraft.failure_detector import FailureDetector
from nyala.replica.multiraft.outbox import Outbox
from nyala.replica.replica import Replica

WATCHED_GROUPS = 8
"""Number of active groups above which each tick is processed at its time, without asking them."""


class QuiescedGroups:
    """The groups of a process.

    Args:
        replicas: all of them.
        outbox: for keepalives.
        failure_detector: liveness of servers, and the quiesced groups that rely on it.
        schedule: schedules a group for this iteration of the event loop.

    Attributes:
        active: the groups that are not quiesced.
    """

    def __init__(
        self,
        replicas: Mapping[TabletId, Replica],
        outbox: Outbox,
        failure_detector: FailureDetector,
        schedule: Callable[[TabletId], None],
    ) -> None:
        self.active: dict[TabletId, None] = {}
        self._replicas = replicas
        self._outbox = outbox
        self._failure_detector = failure_detector
        self._schedule = schedule

    def update(self, group: TabletId, node: RaftNode) -> None:
        """Note whether a group quiesced or woke; called after each step that may have done it."""
        quiesced = node.quiesced
        if quiesced != (group in self.active):
            return
        if quiesced:
            del self.active[group]
            self._failure_detector.add_quiesced(group, node.view.failure_sources())
        else:
            self.active[group] = None
            self._failure_detector.remove_quiesced(group)

    def wake(self, groups: Iterable[TabletId]) -> None:
        """Wake groups that relied on a server which may have failed."""
        for group in groups:
            replica = self._replicas[group]
            if replica.member is not None:
                replica.member.node.wake()
            self._schedule(group)

    def peer_exited(self, server: ServerUuid) -> None:
        """Note that a server's process has exited: groups that relied on it elect another leader."""
        self.wake(self._failure_detector.end(server))
        for group in self.active:
            member = self._replicas[group].member
            if member is not None and member.node.peer_exited(server):
                self._schedule(group)

    def on_replica_ended(self, group: TabletId, replica: Replica) -> None:
        """Note that a replica stopped: no group may rely on it, or on its queued messages, while quiesced."""
        if group not in self.active and not self._failure_detector.is_quiesced(group):
            return  # noted before, or it never ran
        self.active.pop(group, None)
        self._outbox.drop(group)
        others = [m.uuid for m in replica.config.members if m.uuid != self._outbox.uuid]
        self._failure_detector.on_replica_stopped(group, others)

    def idle_ticks(self, longest: int) -> int:
        """Return the number of ticks, at most `longest`, that may be processed together; see `Ticker`."""
        if len(self.active) > WATCHED_GROUPS:
            return 1
        found = min(longest, self._failure_detector.idle_ticks())
        for group in self.active:
            member = self._replicas[group].member
            if found > 1 and member is not None:
                found = min(found, member.idle_ticks())
        return max(1, found)

    def tick(self, hlc: int) -> bool:
        """Process a tick of the active groups; return whether keepalives are due.

        Args:
            hlc: the clock's reading.
        """
        self.wake(self._failure_detector.tick())
        for group in list(self.active):
            replica = self._replicas[group]
            if replica.member is not None:
                try:
                    replica.member.tick(hlc, self._failure_detector)
                except Exception as bug:  # a broken invariant ends this replica, not the server
                    replica.fail(bug)
            self._schedule(group)
        return self.send_keepalives()

    def send_keepalives(self) -> bool:
        """Queue keepalives for the servers that rely on this one; return whether there are any."""
        due = self._failure_detector.due()
        for server in due:
            configs = (r.member.driver.config for r in self._replicas.values() if r.member)
            self._outbox.send_keepalive(server, configs)
        return bool(due)


def without_quiesce_offer(message: AnyMessage) -> AnyMessage:
    """Return a message of a batch that is not its sender's latest, without any offer to quiesce."""
    if isinstance(message, AppendEntries | AppendReply) and message.quiesce:
        return replace(message, quiesce=False)
    return message
