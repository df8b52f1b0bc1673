"""Health of the other members of a group, as reported by its leader here: HEALTHY, SILENT, FAILED.

A member is SILENT if it has not replied for an election timeout, and FAILED if that lasts for
`member_failed_after_ms`, or if it lacks entries and has acknowledged no new ones for that time although it
replies. Raft counts ticks, and a quiesced group has none, so the time is measured here.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.raft.node import RaftNode
from nyala.replica.replica import Replica
from nyala.wire.proto import nyala_pb2 as pb

HEALTHY, SILENT, FAILED = "FINE", "SILENT", "FAILED"
"""State of a member in `MemberHealth`; the wire format has "FINE" for HEALTHY."""


class ReplicaSource(Protocol):
    """The part of the replica host that is used here."""

    def find(self, group: TabletId) -> Replica | None:
        """Return a replica; None: there is none."""
        ...

    def active_replicas(self) -> list[Replica]:
        """Return the replicas of groups that are not quiesced."""
        ...


class PeerHealth:
    """Health of the peers of all leaders in one process. Used on the event loop only.

    Args:
        env: clock and tasks.
        host: has the replicas.
        options: timeouts.
        changed: called when the health of a group's members changes.
    """

    def __init__(
        self, env: Env, host: ReplicaSource, options: Options, changed: Callable[[TabletId], None]
    ) -> None:
        self._env = env
        self._host = host
        self._options = options
        self._changed = changed
        self._since_us: dict[TabletId, dict[ServerUuid, int]] = {}
        self._reported: dict[TabletId, tuple[tuple[ServerUuid, str], ...]] = {}

    def start(self) -> asyncio.Task[object]:
        """Start checking the peers of all leaders, once per heartbeat interval."""
        return self._env.tasks.spawn(self._follow(), "health of members")

    def of(self, replica: Replica) -> list[pb.MemberHealth]:
        """Return the health of the other members; empty if the replica does not lead."""
        return [pb.MemberHealth(uuid=u, state=s) for u, s in self._states(replica)]

    def check(self) -> None:
        """Report every group whose members' health has changed.

        A quiesced group with healthy members has no changes: if a member falls silent, the group wakes.
        """
        up = {r.group: r for r in self._host.active_replicas()}
        doubtful = {g: self._host.find(g) for g in self._since_us if g not in up}
        for group, replica in [*up.items(), *doubtful.items()]:
            if replica is None or not replica.is_leader:
                self._since_us.pop(group, None)
                self._reported.pop(group, None)
                continue
            states = self._states(replica)
            if self._reported.get(group) != states:
                self._reported[group] = states
                self._changed(group)

    async def _follow(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(self._options.server_heartbeat_ms)
            self.check()

    def _states(self, replica: Replica) -> tuple[tuple[ServerUuid, str], ...]:
        node = replica.node
        if node is None or not node.is_leader:
            return ()
        since = self._silent_since(replica.group, node)
        failed_us = self._env.clock.monotonic_us() - self._options.member_failed_after_ms * 1000
        return tuple(
            (m.uuid, _state(since.get(m.uuid), failed_us))
            for m in node.config.members
            if m.uuid != node.uuid
        )

    def _silent_since(self, group: TabletId, node: RaftNode) -> dict[ServerUuid, int]:
        """Return, for each silent or stuck member, since when, in monotonic microseconds."""
        tick_us = self._options.raft_tick_ms * 1000
        longest = max(1, self._options.election_timeout_ms * 1000 // tick_us)
        now_us, before = self._env.clock.monotonic_us(), self._since_us.get(group, {})
        failed_ticks = self._options.member_failed_after_ms * 1000 // tick_us
        silent: dict[ServerUuid, int] = {}
        for peer in node.status().peers:
            if peer.ticks_stuck > failed_ticks:
                silent[peer.uuid] = now_us - peer.ticks_stuck * tick_us
            elif peer.ticks_silent > longest or peer.needs_copy:
                heard_us = now_us - peer.ticks_silent * tick_us
                silent[peer.uuid] = min(heard_us, before.get(peer.uuid, heard_us))
        self._since_us.pop(group, None)
        if silent:
            self._since_us[group] = silent
        return silent


def _state(since_us: int | None, failed_us: int) -> str:
    if since_us is None:
        return HEALTHY
    return FAILED if since_us <= failed_us else SILENT
