"""Health of the other members of a group, as reported by its leader here.

A member is SILENT if it has not replied for an election timeout, and FAILED if that lasts for
`member_failed_after_ms`, or if it lacks entries and has acknowledged no new ones for that time although it
replies. It is UNRECOVERABLE if for that time it has replied and lacked entries that the leader's log no
longer has: only a copy restores it. Raft counts ticks, and a quiesced group has none, so the time is measured
here.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.raft.node import RaftNode
from nyala.replica.replica import Replica
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

HEALTHY, SILENT, FAILED = "HEALTHY", "SILENT", "FAILED"
"""State of a member in `MemberHealth`."""
UNRECOVERABLE = "FAILED_UNRECOVERABLE"
"""State of a member; in `MemberHealth` it is FAILED with a flag, which older masters do not know."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Suspicion that a member has failed; times in monotonic microseconds.

    Attributes:
        since_us: beginning of the time in which it was silent or stuck.
        lacking_us: beginning of the time in which it replied and lacked entries that the leader's log no
            longer has; None: it lacks none.
    """

    since_us: int
    lacking_us: int | None


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
        self._suspicions: dict[TabletId, dict[ServerUuid, _Suspicion]] = {}
        self._reported: dict[TabletId, tuple[tuple[ServerUuid, str], ...]] = {}

    def start(self) -> asyncio.Task[object]:
        """Start checking the peers of all leaders, once per heartbeat interval."""
        return self._env.tasks.spawn(self._follow(), "health of members")

    def of(self, replica: Replica) -> list[pb.MemberHealth]:
        """Return the health of the other members; empty if the replica does not lead."""
        return [_message(u, s) for u, s in self._states(replica)]

    def check(self) -> None:
        """Report every group whose members' health has changed.

        A quiesced group with healthy members has no changes: if a member becomes silent, quiescence ends.
        """
        active = {r.group: r for r in self._host.active_replicas()}
        suspected = {g: self._host.find(g) for g in self._suspicions if g not in active}
        for group in [g for g in self._reported if g not in active]:
            replica = self._host.find(group)
            if replica is None or not replica.is_leader:  # deleted, perhaps
                del self._reported[group]
        for group, replica in [*active.items(), *suspected.items()]:
            if replica is None or not replica.is_leader:
                self._suspicions.pop(group, None)
                self._reported.pop(group, None)
                continue
            states = self._states(replica)
            if self._reported.get(group) != states:
                self._reported[group] = states
                self._changed(group)

    async def _follow(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(self._options.server_heartbeat_ms)
            try:
                self.check()
            except Exception as bug:  # the task's top: without it no failed member is replaced
                log.error("the health of members was not checked", exc_info=bug)

    def _states(self, replica: Replica) -> tuple[tuple[ServerUuid, str], ...]:
        node = replica.node
        if node is None or not node.is_leader:
            return ()
        suspicions = self._suspicions_of(replica.group, node)
        failed_us = self._env.clock.monotonic_us() - self._options.member_failed_after_ms * 1000
        return tuple(
            (m.uuid, _state(suspicions.get(m.uuid), failed_us))
            for m in node.config.members
            if m.uuid != node.uuid
        )

    def _suspicions_of(self, group: TabletId, node: RaftNode) -> dict[ServerUuid, _Suspicion]:
        """Return the suspicion of each silent or stuck member."""
        tick_us = self._options.raft_tick_ms * 1000
        longest = max(1, self._options.election_timeout_ms * 1000 // tick_us)
        now_us, before = self._env.clock.monotonic_us(), self._suspicions.get(group, {})
        failed_ticks = self._options.member_failed_after_ms * 1000 // tick_us
        suspicions: dict[ServerUuid, _Suspicion] = {}
        for peer in node.status().peers:
            heard_us = now_us - peer.ticks_silent * tick_us
            known = before.get(peer.uuid, _Suspicion(heard_us, None))
            silent = peer.ticks_silent > longest
            if peer.ticks_stuck > failed_ticks:
                since_us = now_us - peer.ticks_stuck * tick_us
            elif silent or peer.needs_copy:
                since_us = min(heard_us, known.since_us)
            else:
                continue
            lacking_us = None
            if peer.needs_copy and not silent:
                lacking_us = now_us if known.lacking_us is None else known.lacking_us
            suspicions[peer.uuid] = _Suspicion(since_us, lacking_us)
        self._suspicions.pop(group, None)
        if suspicions:
            self._suspicions[group] = suspicions
        return suspicions


def _state(suspicion: _Suspicion | None, failed_us: int) -> str:
    if suspicion is None:
        return HEALTHY
    if suspicion.lacking_us is not None and suspicion.lacking_us <= failed_us:
        return UNRECOVERABLE
    return FAILED if suspicion.since_us <= failed_us else SILENT


def _message(uuid: ServerUuid, state: str) -> pb.MemberHealth:
    if state == UNRECOVERABLE:
        return pb.MemberHealth(uuid=uuid, state=FAILED, unrecoverable=True)
    return pb.MemberHealth(uuid=uuid, state=state)
