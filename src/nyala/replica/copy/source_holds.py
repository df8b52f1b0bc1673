"""What sessions of copies hold on a source: a checkpoint's files and a part of the log, never for ever.

On the loop only.
"""

import logging
from dataclasses import dataclass

from nyala.common.errors import NotFound, SessionExpired
from nyala.common.ids import ServerUuid
from nyala.env.tasks import Lane
from nyala.replica.context import Around
from nyala.replica.copy.room import CopyRoom
from nyala.replica.copy.uncancellable import to_end
from nyala.replica.member.member import Member
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
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
        """Whether the replica goes on as it was."""
        return self.replica.member is self.member


class Held:
    """The sessions of a process.

    Args:
        around: the process.

    Attributes:
        room: what the files that they hold may have of the disk.
    """

    def __init__(self, around: Around) -> None:
        self._around = around
        self.room = CopyRoom(around.options.copy_staged_bytes, around.env.clock)
        self._sessions: dict[str, Session] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._sessions)

    def _get(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or not session.lives:
            raise SessionExpired(
                f"this server has no session {session_id} of a copy (any more); begin the copy again"
            )
        self._touch(session)
        return session

    def _check(self, session: Session) -> None:
        """Raise what is due if something has ended a session while it began."""
        if not session.lives:
            raise NotFound(
                f"the replica of {session.replica.group} was deleted or failed meanwhile"
            )
        if session.id not in self._sessions:
            raise SessionExpired(f"server {session.target} has begun this copy again meanwhile")

    def _touch(self, session: Session) -> None:
        session.heard_us = self._around.env.clock.monotonic_us()
        if not self._watching:
            self._watching = True
            self._around.env.tasks.spawn(self._watch(), "copy sessions")

    async def _wait(self, duration_ms: float) -> None:
        if duration_ms > 0:
            await self._around.env.tasks.sleep_ms(duration_ms)

    def _keep_from(self, session: Session, index: int) -> None:
        """Keep the entry at `index`, which says what the next one follows, and all after it."""
        session.first = max(session.first, index)
        self._settle(session.replica)

    def _settle(self, replica: Replica) -> None:
        """Tell a replica's core what all its sessions need together."""
        if replica.node is None:
            return
        first = [max(1, s.first) for s in self._sessions.values() if s.replica is replica]
        replica.node.hold(min(first, default=0))
        self._around.dirty(replica.group)

    async def _end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        self._settle(session.replica)
        checkpoint, session.checkpoint = session.checkpoint, None
        try:
            if checkpoint is not None and session.lives:  # else its files are none of ours any more
                await to_end(self._around.env.tasks.run(Lane.APPLY, checkpoint.release))
        except OSError as err:
            what = f"files of {session.replica.group} that only a copy needed"
            log.warning("%s stay until the tablet is opened again: %s", what, err)
        finally:
            self.room.drop(session.id)

    async def _watch(self) -> None:
        """End the sessions that nobody speaks to, and those whose replica has ended."""
        options = self._around.options
        try:
            while self._sessions:
                await self._around.env.tasks.sleep_ms(options.copy_session_ttl_ms / 4)
                now_us = self._around.env.clock.monotonic_us()
                for session in list(self._sessions.values()):
                    silent_ms = (now_us - session.heard_us) // 1000
                    late = silent_ms >= options.copy_session_ttl_ms and not session.busy
                    if late or not session.lives:
                        await self._end(session)
        finally:
            self._watching = False
