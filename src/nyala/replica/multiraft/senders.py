"""Senders of Raft messages: only those of members of the group count.

Members are those of the active and of the committed configuration of the replica. A server in neither may
be foreign, or a member that was added while this replica was behind, perhaps the leader. Its message is
dropped, and the masters are asked for the group's configuration; messages of members of a later one than this
replica's count from then on, since Raft sends again. So a removed or foreign server cannot raise a term or
disrupt a group, and a replica that is behind catches up (dissertation 4.1 accepts every sender for this
reason). On the loop only.
"""

import logging
from collections.abc import Awaitable, Callable

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.membership import Configuration
from nyala.replica.context import ReplicaContext
from nyala.replica.replica import Replica

log = logging.getLogger(__name__)

ConfigurationSource = Callable[[TabletId, ServerUuid], Awaitable[Configuration | None]]
"""Returns the newest committed configuration of a group that the masters know; None: they know none.

The server has sent a message, and the replica does not know it as a member.
"""
ASK_INTERVAL_US = 500_000
"""Time between two questions about one group, in microseconds."""
KEPT_US = 60_000_000
"""Time after a question for which its answer is kept, in microseconds."""
MAX_ASKED = 1_000
"""Groups about which there are questions or answers at a time; messages of others are dropped meanwhile."""


class Senders:
    """The servers whose messages count for each group.

    Args:
        context: the process.
        source: see `ConfigurationSource`; None: there are no masters, and messages of every server count.
    """

    def __init__(self, context: ReplicaContext, source: ConfigurationSource | None) -> None:
        self._context = context
        self._source = source
        self._later: dict[TabletId, Configuration] = {}
        self._asked_us: dict[TabletId, int] = {}

    def admits(self, replica: Replica, sender: ServerUuid) -> bool:
        """Return whether a message of a server to a replica, or to its tombstone, counts."""
        if self._source is None or self._is_member(replica, sender):
            return True
        self._context.counters.refused.labels("sender").inc()
        return False

    def _is_member(self, replica: Replica, sender: ServerUuid) -> bool:
        node = replica.node
        if node is not None:
            config = node.config
            if sender in config.uuids or sender in node.committed_config.uuids:
                return True
        elif replica.tombstone is not None:
            config = replica.tombstone.config
            if sender in config.uuids:
                return True
        else:
            return False
        later = self._later.get(replica.group)
        if later is not None and later.id > config.id and sender in later.uuids:
            return True
        self._ask(replica.group, sender)
        return False

    def _ask(self, group: TabletId, sender: ServerUuid) -> None:
        now_us = self._context.env.clock.monotonic_us()
        before_us = self._asked_us.get(group)
        if before_us is not None and now_us - before_us < ASK_INTERVAL_US:
            return
        if before_us is None and len(self._asked_us) >= MAX_ASKED:
            self._forget(now_us)
            if len(self._asked_us) >= MAX_ASKED:
                return
        self._asked_us[group] = now_us
        assert self._source is not None
        work = self._learn(group, sender, self._source)
        self._context.env.tasks.spawn(work, f"members of {group}")

    def _forget(self, now_us: int) -> None:
        """Forget the answers that were not asked for in the last minute."""
        old = [g for g, at in self._asked_us.items() if now_us - at > KEPT_US]
        for group in old:
            del self._asked_us[group]
            self._later.pop(group, None)

    async def _learn(
        self, group: TabletId, sender: ServerUuid, source: ConfigurationSource
    ) -> None:
        try:
            found = await source(group, sender)
        except NyalaError as err:  # no master answers: asked again with a later message
            log.debug("the members of %s are not known: %s", group, err)
            return
        if found is not None:
            self._later[group] = found
