"""Addresses of the masters, as a tablet server knows them: given at its start, kept on disk, sent by masters.

The list of the leader master is used and kept: a restart with an old list finds the cluster as long as one
address of either is still a master's. While no leader answers, every address ever named is tried.
"""

import logging
from collections.abc import Sequence

from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

LEADERLESS = 10
"""Heartbeats without an answer of a leader after which every address ever named is tried."""


class MasterList:
    """Addresses of the masters. On the loop only.

    Args:
        env: the clock.
        identity: of this server; keeps the list.
        given: public addresses, as it was told at its start.
        interval_ms: between two heartbeats.
    """

    def __init__(
        self, env: Env, identity: Identity, given: Sequence[str], interval_ms: int
    ) -> None:
        self._clock = env.clock
        self._identity = identity
        self._silent_us = LEADERLESS * interval_ms * 1000
        self._named: dict[str, None] = dict.fromkeys(given)
        self._led: tuple[str, ...] = ()
        self._heard_us = 0

    def present(self) -> tuple[str, ...]:
        """Return whom to report to."""
        if self._led and self._clock.monotonic_us() - self._heard_us < self._silent_us:
            return self._led
        kept = self._identity.instance.masters[-1:]
        return tuple(dict.fromkeys([*self._led, *self._named, *(kept[0] if kept else ())]))

    async def heard(self, response: pb.HeartbeatResponse, newest: int) -> None:
        """Take the list in a master's answer; the list of who leads is kept, durable on return.

        Args:
            response: of any master of this cluster.
            newest: the highest term in which a master is known to have led: a deposed one is not obeyed.

        Raises:
            OSError: the list was not written.
        """
        told = tuple(response.master_addresses)
        if not told:
            return
        if not response.leader or response.term != newest:
            self._named |= dict.fromkeys(told)
            return
        self._heard_us = self._clock.monotonic_us()
        if told != self._led:
            log.info("the masters are %s", ", ".join(told))
            self._led, self._named = told, dict.fromkeys((*self._named, *told))
            await self._identity.learn(masters=told)
