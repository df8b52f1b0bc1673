"""The masters as a tablet server knows them: given at its start, kept on disk, and what they say themselves.

The list of the leader master is obeyed, and kept: a restart with an old list finds the cluster as long as
one address of either still is a master's. While no leader answers, everyone who was ever named is asked.
"""

import logging
from collections.abc import Sequence

from nyala.env.clock import Clock
from nyala.replica.identity import Identity
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


class KnownMasters:
    """On the loop only.

    Args:
        clock: how long ago a leader answered.
        identity: of this server; keeps the list.
        given: public addresses, as it was told at its start.
        silent_us: no leader has answered for so long: any master's word counts.
    """

    def __init__(
        self, clock: Clock, identity: Identity, given: Sequence[str], silent_us: int
    ) -> None:
        self._clock = clock
        self._identity = identity
        self._silent_us = silent_us
        self._named: dict[str, None] = dict.fromkeys(given)
        self._led: tuple[str, ...] = ()
        self._heard_us = 0

    def present(self) -> tuple[str, ...]:
        """Return whom to report to."""
        if self._led and self._clock.monotonic_us() - self._heard_us < self._silent_us:
            return self._led
        kept = self._identity.instance.masters[-1:]
        return tuple(dict.fromkeys([*self._led, *self._named, *(kept[0] if kept else ())]))

    def heard(self, response: pb.HeartbeatResponse, *, leads: bool) -> None:
        """Take the list in a master's answer; the list of who leads is kept, durable on return.

        Args:
            response: of any master of this cluster.
            leads: it is the leader's, of the newest term that is known.

        Raises:
            OSError: the list was not written.
        """
        told = tuple(response.master_addresses)
        if not told:
            return
        if not leads:
            self._named |= dict.fromkeys(told)
            return
        self._heard_us = self._clock.monotonic_us()
        if told != self._led:
            log.info("the masters are %s", ", ".join(told))
            self._led, self._named = told, dict.fromkeys((*self._named, *told))
            self._identity.learn(masters=told)
