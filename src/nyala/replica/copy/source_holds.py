"""Sessions of copies from this server, and what each holds here: a checkpoint's files and a part of the log.

A session ends with its replica, or when its target has not been heard for `copy_session_ttl_ms`.
On the loop only.
"""

import logging
from dataclasses import dataclass

from nyala.common.errors import NotFound, SessionExpired
from nyala.common.ids import ServerUuid
from nyala.env.tasks import Lane
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.room import CopyRoom
from nyala.replica.copy.uncancellable import to_end
from nyala.replica.member.member import Member
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SourceSession:
    """One target's hold on one replica.

    Attributes:
        id: drawn at random.
        replica: that is copied.
        member: its working parts when the session began; it ends with them.
        target: uuid of the server that gets the copy.
        checkpoint: the files; None: not fixed yet, or let go of.
        first: the entry at this index and all after it are kept.
        goal: the log is told up to here, what was committed when it was first asked for; 0: it was not yet.
        heard_us: when its target was heard last; monotonic.
        busy: calls under way.
    """

    id: str
    replica: Replica
    member: Member
    target: ServerUuid
    checkpoint: AnyCheckpoint | None = None
    first: int = 0
    goal: int = 0
    heard_us: int = 0
    busy: int = 0

    @property
    def lives(self) -> bool:
        """True if the replica goes on as it was."""
        return self.replica.member is self.member


class SourceHolds:
    """The sessions of a process, and what they hold.

    Args:
        context: the process.

    Attributes:
        room: what the files that they hold may have of the disk.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self.room = CopyRoom(context.options.copy_staged_bytes, context.env.clock)
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
        self.touch(session)

    def find(self, session_id: str) -> SourceSession | None:
        """Return a session, whether its replica goes on or not; None: there is none of this id."""
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> SourceSession:
        """Return a session, which its target has used now.

        Raises:
            SessionExpired: it has ended, or never was.
        """
        session = self._sessions.get(session_id)
        if session is None or not session.lives:
            raise SessionExpired(
                f"this server has no session {session_id} of a copy (any more); begin the copy again"
            )
        self.touch(session)
        return session

    def check(self, session: SourceSession) -> None:
        """Check that nothing has ended a session while it began.

        Raises:
            NotFound: its replica ended. SessionExpired: its target began another one.
        """
        if not session.lives:
            raise NotFound(
                f"the replica of {session.replica.group} was deleted or failed meanwhile"
            )
        if session.id not in self._sessions:
            raise SessionExpired(f"server {session.target} has begun this copy again meanwhile")

    def touch(self, session: SourceSession) -> None:
        """Note that the target of a session was heard."""
        session.heard_us = self._context.env.clock.monotonic_us()
        if not self._watching:
            self._watching = True
            self._context.env.tasks.spawn(self._watch(), "copy sessions")

    def keep_from(self, session: SourceSession, index: int) -> None:
        """Keep the entry at `index`, which says what the next one follows, and all after it."""
        session.first = max(session.first, index)
        self._settle(session.replica)

    def _settle(self, replica: Replica) -> None:
        """Tell a replica's core the lowest index that its sessions need."""
        if replica.node is None:
            return
        first = [max(1, s.first) for s in self._sessions.values() if s.replica is replica]
        replica.node.retain_from(min(first, default=0))
        self._context.schedule(replica.group)

    async def end(self, session: SourceSession) -> None:
        """End a session and release what it holds; no error if it has ended."""
        self._sessions.pop(session.id, None)
        self._settle(session.replica)
        checkpoint, session.checkpoint = session.checkpoint, None
        try:
            if checkpoint is not None and session.lives:  # else its files are none of ours any more
                await to_end(self._context.env.tasks.run(Lane.APPLY, checkpoint.release))
        except OSError as err:
            what = f"files of {session.replica.group} that only a copy needed"
            log.warning("%s stay until the tablet is opened again: %s", what, err)
        finally:
            self.room.drop(session.id)

    async def _watch(self) -> None:
        """End the sessions whose target is silent, and those whose replica has ended."""
        options = self._context.options
        try:
            while self._sessions:
                await self._context.env.tasks.sleep_ms(options.copy_session_ttl_ms / 4)
                now_us = self._context.env.clock.monotonic_us()
                for session in list(self._sessions.values()):
                    silent_ms = (now_us - session.heard_us) // 1000
                    late = silent_ms >= options.copy_session_ttl_ms and not session.busy
                    if late or not session.lives:
                        await self.end(session)
        finally:
            self._watching = False
