"""Addresses of the masters: from the command line, from disk, and from heartbeat responses.

The leader master's list is used and stored: a restart with an old list finds the cluster as long as one
address of either list is still a master's. While no leader replies, every known address is tried.
"""

import logging
from collections.abc import Sequence

from nyala.common import addresses
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

LEADERLESS_HEARTBEATS = 10
"""Heartbeat intervals without a leader's response after which every known address is tried."""
MAX_KNOWN = 64
"""Maximum number of known addresses; beyond it the one that was listed longest ago is dropped."""


class MasterList:
    """Addresses of the masters. Used on the event loop only.

    Args:
        env: the clock.
        identity: identity of this server; stores the list.
        given: public addresses from the command line.
        interval_ms: between two heartbeats.
    """

    def __init__(
        self, env: Env, identity: Identity, given: Sequence[str], interval_ms: int
    ) -> None:
        self._clock = env.clock
        self._identity = identity
        self._silent_us = LEADERLESS_HEARTBEATS * interval_ms * 1000
        self._known: dict[str, None] = dict.fromkeys(given)
        self._leader_list: tuple[str, ...] = ()
        self._leader_reply_us = 0

    def current(self) -> tuple[str, ...]:
        """Return the addresses to report to."""
        if (
            self._leader_list
            and self._clock.monotonic_us() - self._leader_reply_us < self._silent_us
        ):
            return self._leader_list
        kept = self._identity.instance.masters[-1:]
        return tuple(dict.fromkeys([*self._leader_list, *self._known, *(kept[0] if kept else ())]))

    async def update(self, response: pb.HeartbeatResponse, term: int) -> None:
        """Process the list in a master's response; the leader's list is durable on return.

        Args:
            response: response of any master of this cluster.
            term: the highest known term of a leader master; lists of deposed leaders are not stored.

        Raises:
            OSError: the list was not written.
        """
        listed = tuple(response.master_addresses)
        if not listed:
            return
        if not response.leader or response.term != term:
            self._learn(listed)
            return
        self._leader_reply_us = self._clock.monotonic_us()
        if listed != self._leader_list:
            log.info("the masters are %s", ", ".join(listed))
            self._leader_list = listed
            self._learn(listed)
            await self._identity.learn(masters=listed)

    def _learn(self, listed: Sequence[str]) -> None:
        for address in listed:
            addresses.keep_newest(self._known, address, None, MAX_KNOWN)
