"""Sessions of copies from this server, each of which retains a checkpoint's files and a part of the log.

A session ends with its replica, or when its target has sent nothing for `copy_session_ttl_ms`.
On the loop only.
"""

import logging
from dataclasses import dataclass

from nyala.common.errors import NotFound, SessionExpired
from nyala.common.ids import ServerUuid
from nyala.env.tasks import Lane, shielded
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.quota import CopyQuota
from nyala.replica.member.member import ReplicaMember
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SourceSession:
    """Session of one target with one replica.

    Attributes:
        id: drawn at random.
        replica: the source.
        member: its running member when the session began; the session ends with it.
        target: uuid of the server that gets the copy.
        checkpoint: the files; None: not taken yet, or released.
        first: index of the first log entry that is retained.
        end_index: last index that is sent: the commit index at the first request for entries; 0: none was
            received.
        used_us: time of the target's last request, monotonic.
        busy: number of requests under way.
    """

    id: str
    replica: Replica
    member: ReplicaMember
    target: ServerUuid
    checkpoint: AnyCheckpoint | None = None
    first: int = 0
    end_index: int = 0
    used_us: int = 0
    busy: int = 0

    @property
    def is_valid(self) -> bool:
        """True if the replica has not been stopped or reopened since the session began."""
        return self.replica.member is self.member


class SourceHolds:
    """The sessions of a process, and the files and log entries that they retain.

    Args:
        context: the process.

    Attributes:
        quota: limit of disk space for the files of all sessions.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self.quota = CopyQuota(context.options.copy_staged_bytes, context.env.clock)
        self._sessions: dict[str, SourceSession] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, target: ServerUuid, replica: Replica) -> list[SourceSession]:
        """Return the sessions of one target on one replica."""
        return [s for s in self._sessions.values() if s.target == target and s.replica is replica]

    def add(self, session: SourceSession) -> None:
        """Add a session that begins now."""
        self._sessions[session.id] = session
        self.renew(session)

    def find(self, session_id: str) -> SourceSession | None:
        """Return a session, valid or not; None: there is none with this id."""
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> SourceSession:
        """Return a session, and extend its lifetime.

        Raises:
            SessionExpired: there is no valid session with this id.
        """
        session = self._sessions.get(session_id)
        if session is None or not session.is_valid:
            raise SessionExpired(
                f"this server has no session {session_id} of a copy (any more); begin the copy again"
            )
        self.renew(session)
        return session

    def check(self, session: SourceSession) -> None:
        """Check that a session was not ended while it began.

        Raises:
            NotFound: its replica was stopped. SessionExpired: its target began another session.
        """
        if not session.is_valid:
            raise NotFound(
                f"the replica of {session.replica.group} was deleted or failed meanwhile"
            )
        if session.id not in self._sessions:
            raise SessionExpired(f"server {session.target} has begun this copy again meanwhile")

    def renew(self, session: SourceSession) -> None:
        """Extend the lifetime of a session: its target has sent a request."""
        session.used_us = self._context.env.clock.monotonic_us()
        if not self._watching:
            self._watching = True
            self._context.env.tasks.spawn(self._watch(), "copy sessions")

    def keep_from(self, session: SourceSession, index: int) -> None:
        """Retain the log from the entry at `index` on, which gives the term that the next entry follows."""
        session.first = index
        self._update_retention(session.replica)

    def _update_retention(self, replica: Replica) -> None:
        """Set the lowest index that sessions need in the replica's Raft node."""
        if replica.node is None:
            return
        first = [max(1, s.first) for s in self._sessions.values() if s.replica is replica]
        replica.node.retain_from(min(first, default=0))
        self._context.schedule(replica.group)

    async def end(self, session: SourceSession) -> None:
        """End a session and release its files and log entries; no error if it has ended."""
        self._sessions.pop(session.id, None)
        self._update_retention(session.replica)
        checkpoint, session.checkpoint = session.checkpoint, None
        try:
            if (
                checkpoint is not None and session.is_valid
            ):  # else its files are none of ours any more
                await shielded(self._context.env.tasks.run(Lane.APPLY, checkpoint.release))
        except OSError as err:
            what = f"files of {session.replica.group} that only a copy needed"
            log.warning("%s stay until the tablet is opened again: %s", what, err)
        finally:
            self.quota.release(session.id)

    async def _end_late(self, session: SourceSession) -> None:
        try:
            await self.end(session)
        except Exception as bug:  # the other sessions would retain files and log for ever
            log.error("a copy session of %s was not ended", session.replica.group, exc_info=bug)

    async def _watch(self) -> None:
        """End the sessions whose lifetime is over, and those whose replica was stopped."""
        options = self._context.options
        try:
            while self._sessions:
                await self._context.env.tasks.sleep_ms(options.copy_session_ttl_ms / 4)
                now_us = self._context.env.clock.monotonic_us()
                for session in list(self._sessions.values()):
                    silent_ms = (now_us - session.used_us) // 1000
                    late = silent_ms >= options.copy_session_ttl_ms and not session.busy
                    if late or not session.is_valid:
                        await self._end_late(session)
        finally:
            self._watching = False
