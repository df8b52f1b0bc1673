"""Offsets between the wall clocks of servers, and the transfer of leadership away from a clock that is off.

No guarantee depends on wall clocks, but stamps that users read as times do: a leader whose clock is far from
those of a majority transfers leadership to a voter whose clock is near one. Where there is none it goes on
leading.

An offset is the sender's wall clock in a batch less ours at its arrival. Network delay only lowers it, so the
greatest of a second's offsets is the most accurate. It is kept against our monotonic clock: when our
own wall clock is set, all offsets change with it at once.
"""

import logging
from collections.abc import Callable

from msgspec.structs import replace

from nyala.common.ids import ServerUuid
from nyala.env.clock import Clock
from nyala.raft.messages import PeerBatch
from nyala.raft.node import RaftNode
from nyala.raft.quorum import majority
from nyala.replica.state_machine import Transport

log = logging.getLogger(__name__)

SPAN_US = 1_000_000
KEPT_SPANS = 3
"""Spans without a new offset after which an offset is dropped."""


REMEMBERED_US = 60_000_000
"""Time for which an offset counts in `latest_us`, which only decides which clock is right."""


class _Heard:
    """Offsets of one server: the best one of the current span, and of the last complete span."""

    __slots__ = ("at_us", "began_us", "best_us", "offset_us")

    def __init__(self, now_us: int, offset_us: int) -> None:
        self.began_us, self.best_us = now_us, offset_us
        self.at_us, self.offset_us = -KEPT_SPANS * SPAN_US, 0

    def note(self, now_us: int, offset_us: int) -> None:
        span_us = now_us - self.began_us
        if span_us < SPAN_US:
            self.best_us = max(self.best_us, offset_us)
            return
        if span_us < 2 * SPAN_US:  # else it was paused, or nothing came
            self.at_us, self.offset_us = now_us, self.best_us
        self.began_us, self.best_us = now_us, offset_us


class ClockOffsets:
    """A `Transport` that tells this server's wall clock with each batch, and notes those of others.

    Args:
        transport: carries the batches.
        clock: of this process.
        limit_ms: offset from which on a clock counts as far.
    """

    def __init__(self, transport: Transport, clock: Clock, limit_ms: int) -> None:
        self._transport = transport
        self._clock = clock
        self._limit_us = limit_ms * 1000
        self._heard: dict[ServerUuid, _Heard] = {}
        self._far = False  # some clock is, as of the last look

    def send(self, address: str, batch: PeerBatch) -> None:
        """See `Transport.send`."""
        self._transport.send(address, replace(batch, wall_us=self._clock.wall_us()))

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """See `Transport.receive`."""

        def take(batch: PeerBatch) -> None:
            self._note(batch)
            handler(batch)

        self._transport.receive(take, lost)

    def _note(self, batch: PeerBatch) -> None:
        if not batch.wall_us:
            return
        now_us = self._clock.monotonic_us()
        heard = self._heard.get(batch.sender)
        if heard is None:
            self._heard[batch.sender] = _Heard(now_us, batch.wall_us - now_us)
        else:
            heard.note(now_us, batch.wall_us - now_us)

    def known_us(self) -> dict[ServerUuid, int]:
        """Return the offsets that are known: positive where the other's clock is ahead."""
        now_us = self._clock.monotonic_us()
        since_us, ours_us = now_us - KEPT_SPANS * SPAN_US, self._clock.wall_us() - now_us
        return {u: h.offset_us - ours_us for u, h in self._heard.items() if h.at_us > since_us}

    def latest_us(self) -> dict[ServerUuid, int]:
        """Return the offsets by the batches of each one's last span: known from the first batch on.

        They are remembered for long: followers hear of each other in elections only.
        """
        now_us = self._clock.monotonic_us()
        since_us, ours_us = now_us - REMEMBERED_US, self._clock.wall_us() - now_us
        return {u: h.best_us - ours_us for u, h in self._heard.items() if h.began_us > since_us}

    def look(self) -> None:
        """See whether any clock is far: once a tick, for the leaders of all groups."""
        self._far = any(abs(o) > self._limit_us for o in self.known_us().values())

    def worst_ms(self) -> float:
        """Return the largest offset, either way, in milliseconds."""
        return max((abs(o) for o in self.known_us().values()), default=0) / 1000

    def hand_over(self, node: RaftNode) -> None:
        """Transfer leadership if this clock is far from those of a majority, and a voter's is near one."""
        if not self._far or not node.is_leader or node.view.transferring:
            return
        known = self.known_us()
        config, matches = node.config, node.view.matches()
        clocks = {node.uuid: 0} | {u: known[u] for u in config.voters if u in known}
        needed = majority(len(config.voters))

        def agreeing(uuid: ServerUuid) -> int:
            return sum(abs(clocks[uuid] - o) <= self._limit_us for o in clocks.values())

        if len(clocks) - agreeing(node.uuid) < needed:
            return
        able = [m.uuid for m in config.members if m.uuid in clocks and m.voter and m.electable]
        good = [u for u in able if agreeing(u) >= needed and u in matches]
        if good:
            to = max(good, key=lambda u: matches[u])
            log.warning(
                "this server's clock is %.1f s from those of a majority: %s leads next",
                abs(clocks[to]) / 1e6, to,
            )  # fmt: skip
            node.transfer(to)
