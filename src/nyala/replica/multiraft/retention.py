"""Retention of the log for absent members and FAILED replicas, over all groups of a process.

On the loop only.
"""

import logging
from collections.abc import Mapping

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.options import MIB
from nyala.replica.context import ReplicaContext
from nyala.replica.lifecycle import release_log
from nyala.replica.replica import Replica

log = logging.getLogger(__name__)


class Retention:
    """Retention of the log within `wal_retain_for_peers_mb`.

    Args:
        context: the process.
        replicas: all of it.
    """

    def __init__(self, context: ReplicaContext, replicas: Mapping[TabletId, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._releasing: dict[TabletId, None] = {}

    def collect(self) -> tuple[TabletId, ...]:
        """Start collecting a log that exceeds its size; return the groups that pin its oldest segment."""
        wal, options = self._context.wal, self._context.options
        keep, stats = max(2, options.wal_retain_mb // options.wal_segment_mb), wal.stats()
        if stats.segments <= keep:
            return ()
        self._limit()
        wal.collect(keep)
        return stats.pinned_by

    def _limit(self) -> None:
        """Release retained log beyond the limit: the group with the most first."""
        wal = self._context.wal
        unreadable = dict(wal.unreadable)
        for group, err in unreadable.items():
            if (replica := self._replicas.get(group)) is not None:
                replica.fail(err)
        held = wal.held_bytes()
        over = sum(held.values()) - self._context.options.wal_retain_for_peers_mb * MIB
        for group in sorted(held, key=lambda g: (g not in unreadable, -held[g], g)):
            if over <= 0 and group not in unreadable:
                return
            self._release(group)
            over -= held[group]

    def _release(self, group: TabletId) -> None:
        replica = self._replicas.get(group)
        if replica is None or group in self._releasing:
            return
        if replica.member is not None:
            replica.member.release_log()
        else:
            self._releasing[group] = None
            self._context.env.tasks.spawn(
                self._release_stopped(replica), f"release the log of {group}"
            )

    async def _release_stopped(self, replica: Replica) -> None:
        try:
            await release_log(self._context, replica)
        except (OSError, NyalaError) as err:  # a full disk may have free space again
            log.warning("the log keeps what %s needs: %s", replica.group, err)
        finally:
            del self._releasing[replica.group]
