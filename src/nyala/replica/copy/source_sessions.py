"""Sessions of servers that copy from this one: each retains files and the log after them.

A session ends at its target's request, when its target has sent nothing for `copy_session_ttl_ms`, or with
its replica; its files and log entries are released then. On the loop only.
"""

import asyncio
from collections.abc import Callable

from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    Throttled,
    Unavailable,
)
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.clock import random_id
from nyala.env.tasks import Lane, shielded
from nyala.raft.messages import Entry
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.protocol import CopyFile, CopyOffer
from nyala.replica.copy.source_authority import possible_loss
from nyala.replica.copy.source_holds import SourceHolds, SourceSession
from nyala.replica.copy.throttle import CopyThrottle, WriteActivity
from nyala.replica.replica import Replica
from nyala.replica.state_machine import AnyCheckpoint

LOG_BYTES = 4 << 20
"""Bytes of entries in one response, one entry at least; a message has space for the largest entry besides."""
Find = Callable[[TabletId], Replica | None]


class CopySessions:
    """The sessions of all copies from this server.

    Args:
        context: the process.
        find: returns the replica of a group.
        writers: write activity of the process.

    Attributes:
        quota: limit of disk space for the files of all sessions.
    """

    def __init__(self, context: ReplicaContext, find: Find, writers: WriteActivity) -> None:
        self._context = context
        self._holds = SourceHolds(context)
        self.quota = self._holds.quota
        self._find = find
        self._throttle = CopyThrottle(
            context.env.clock, writers, 0, context.options.copy_busy_rate_bytes
        )

    def __len__(self) -> int:
        return len(self._holds)

    async def begin(
        self, group: TabletId, target: ServerUuid, *, min_index: int = 0, force: bool = False
    ) -> CopyOffer:
        """Begin a session; errors as `CopySource.begin`.

        Args:
            group: group of the replica.
            target: server that gets the copy; an earlier session of it for the group ends.
            min_index: lowest index that the flush point of the files may have.
            force: begin even if the replica may lack acknowledged entries.
        """
        if target == self._context.uuid:
            raise InvalidArgument(f"a replica of {group} cannot be copied to its own server")
        replica = self._find(group)
        if replica is None:
            raise NotFound(f"this server has no replica of {group}")
        member = replica.running_member()
        for old in self._holds.of(target, replica):
            await self._holds.end(old)
        if len(self) >= self._context.options.copy_sessions_max:
            raise Throttled(
                f"{len(self)} copies are made from this server already; try again later, or "
                "raise copy_sessions_max",
                {"retry_after_ms": "1000"},
            )
        session = SourceSession(
            random_id(self._context.env.random), replica, member, target, busy=1
        )
        self._holds.add(session)
        try:
            return await self._begin(session, min_index, force)
        except (Exception, asyncio.CancelledError):  # raised again; nothing may stay retained
            await self._holds.end(session)
            raise
        finally:
            session.busy -= 1

    async def _begin(self, session: SourceSession, min_index: int, force: bool) -> CopyOffer:
        replica, member = session.replica, session.member
        may_lose = await possible_loss(self._context, replica, force)
        machine, node = member.applier.machine, member.node
        if machine.flush_point.op.index < min_index:
            try:
                await replica.flush()
            except OSError as err:  # nothing changed: a full disk may get free space
                raise Unavailable(
                    f"the copy has to reach {min_index}, and the source could not be flushed: {err}"
                ) from err
        self._holds.check(session)
        # Before the flush point is fixed: it only advances.
        self._holds.keep_from(session, machine.flush_point.op.index)
        checkpoint = await shielded(self._fix(session))
        self._holds.check(session)
        self.quota.reserve(session.id, sum(f.size_bytes for f in checkpoint.files))
        flush_point = checkpoint.flush_point
        if flush_point.op.index < min_index:
            raise InvalidArgument(
                f"the copy has to reach {min_index}, and this replica of {replica.group} has "
                f"applied {flush_point.op}"
            )
        self._holds.keep_from(session, flush_point.op.index)
        manifest = CopyFile(checkpoint.manifest_name, len(checkpoint.manifest_bytes))
        files = [CopyFile(f.name, f.size_bytes) for f in checkpoint.files]
        return CopyOffer(
            session=session.id,
            ttl_ms=self._context.options.copy_session_ttl_ms,
            flush_op=flush_point.op,
            stamp=flush_point.stamp,
            files=(*files, manifest),
            config=node.committed_config,
            term=node.term,
            leader=node.leader,
            may_lose=may_lose,
        )

    async def _fix(self, session: SourceSession) -> AnyCheckpoint:
        """Take the checkpoint; the end of the session releases it."""
        checkpoint = session.member.applier.machine.checkpoint
        session.checkpoint = await self._context.env.tasks.run(Lane.APPLY, checkpoint)
        return session.checkpoint

    async def read(self, session_id: str, name: str, offset: int) -> bytes:
        """Return the next piece of a file, at most `copy_chunk_bytes`; empty at its end.

        Args:
            session_id: from `begin`.
            name: name of the file, as offered.
            offset: offset of the first byte.

        Raises:
            SessionExpired: no such session (any more). InvalidArgument: no such file in it.
        """
        session = self._holds.get(session_id)
        checkpoint = session.checkpoint
        length = self._throttle.chunk_bytes(self._context.options.copy_chunk_bytes)
        assert checkpoint is not None, f"{session_id} was told before it had begun"
        if name == checkpoint.manifest_name:
            return checkpoint.manifest_bytes[offset : offset + length]
        if offset > next((f.size_bytes for f in checkpoint.files if f.name == name), -1):
            raise InvalidArgument(f"the session has no file {name!r} with an offset {offset}")
        path = f"{self._context.machine_directory(session.replica.group)}/{name}"
        env = self._context.env
        session.busy += 1
        try:
            piece = await env.tasks.run(Lane.COMPUTE, env.files.read, path, offset, length)
            await self._limit_rate(len(piece))
            return piece
        finally:
            session.busy -= 1
            self._holds.renew(session)

    async def entries(self, session_id: str, after: OpId) -> list[Entry]:
        """Return the entries that follow `after`; the log before it is released.

        Empty once everything is sent that was committed at the session's first request for entries: writers
        may never pause, and later entries come from the leader, as for any member.

        Raises:
            SessionExpired: as `read`. InvalidArgument: the log has no such entry.
        """
        session = self._holds.get(session_id)
        node = session.member.node
        if after.index < session.first or not node.view.holds(after):
            raise InvalidArgument(f"the log has no {after}, or it is not kept for this copy")
        session.end_index = session.end_index or node.commit_index
        end = min(session.end_index, node.view.durable_index)
        self._holds.keep_from(session, after.index)
        if after.index >= end:
            return []
        session.busy += 1
        try:
            max_bytes = self._throttle.chunk_bytes(LOG_BYTES)
            found = await self._context.wal.read(session.replica.group, after.index + 1, max_bytes)
            await self._limit_rate(sum(len(e.payload) for e in found))
        finally:
            session.busy -= 1
            self._holds.renew(session)
        return [e for e in found if e.id.index <= end]

    async def hold(self, session_id: str, *, end: bool = False) -> int:
        """Extend the lifetime of a session, or end it; return its remaining lifetime in milliseconds.

        Raises:
            SessionExpired: as `read`; not raised with `end`.
        """
        if end:
            session = self._holds.find(session_id)
            if session is not None:
                await self._holds.end(session)
            return 0
        self._holds.get(session_id)
        return self._context.options.copy_session_ttl_ms

    async def _limit_rate(self, size_bytes: int) -> None:
        """Wait as long as the rate limit requires before so many bytes are sent."""
        wait_ms = self._throttle.spend(size_bytes)
        if wait_ms > 0:
            await self._context.env.tasks.sleep_ms(wait_ms)
