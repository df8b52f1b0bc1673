"""Offsets between the wall clocks of servers, and the transfer of leadership away from a clock that is off.

No guarantee depends on wall clocks, but stamps that users read as times do: a leader whose clock is far from
those of a majority transfers leadership to a voter whose clock is near the majority's. If there is no such
voter it keeps leading.

An offset is the sender's wall clock in a batch minus the local one at its arrival. Network delay only lowers
it, so the largest offset of a second is the most accurate. It is stored relative to the local monotonic
clock: when the local wall clock is set, all offsets change with it at once. Batches that waited while this
process was stopped, or had no processor, give no offset: a sender's clock would seem to be behind.
"""

import logging
from collections.abc import Callable

from msgspec.structs import replace

from nyala.common import addresses
from nyala.common.ids import ServerUuid
from nyala.env.clock import Clock
from nyala.raft.messages import PeerBatch
from nyala.raft.node import RaftNode
from nyala.raft.quorum import majority
from nyala.replica.state_machine import Transport

log = logging.getLogger(__name__)

SPAN_US = 1_000_000
KEPT_SPANS = 3
"""Number of spans without a new offset after which an offset is dropped."""


LATEST_TTL_US = 60_000_000
"""Lifetime of an offset in `latest_us`, in microseconds; it only decides which clock is wrong."""


class _OffsetSpan:
    """Offsets of one server: the largest of the current span, and that of the last complete span."""

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


class MasterClocks:
    """Wall clocks of the masters, as their answers to heartbeats had them.

    A server without peers compares its own with them.

    Args:
        clock: clock of this process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[int, int]] = {}  # time of arrival; wall clock less that

    def note(self, master: str, wall_us: int) -> None:
        """Take the wall clock in an answer that has just arrived.

        Args:
            master: uuid.
            wall_us: microseconds since the epoch; 0: the master, of an earlier version, does not send it.
        """
        if wall_us:
            now_us = self._clock.monotonic_us()
            addresses.keep_newest(self._heard, master, (now_us, wall_us - now_us))

    def offsets_us(self) -> list[int]:
        """Return the microseconds by which the clocks heard of lately are ahead of this one."""
        now_us = self._clock.monotonic_us()
        own_us, since_us = self._clock.wall_us() - now_us, now_us - LATEST_TTL_US
        return [offset - own_us for at_us, offset in self._heard.values() if at_us > since_us]


class ClockOffsets:
    """A `Transport` that adds the local wall clock to each batch and records the offsets of other servers.

    Args:
        transport: sends and receives the batches.
        clock: clock of this process.
        limit_ms: largest offset of a correct clock.
    """

    def __init__(self, transport: Transport, clock: Clock, limit_ms: int) -> None:
        self._transport = transport
        self._clock = clock
        self._limit_us = limit_ms * 1000
        self._servers: dict[ServerUuid, _OffsetSpan] = {}
        self._any_far = False  # some clock is beyond the limit, as of the last `update`
        self._updated_us = clock.monotonic_us()
        self._stale_until_us = 0  # until then batches may have waited for this process

    def __len__(self) -> int:
        """Number of servers whose offsets are kept."""
        return len(self._servers)

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
        now_us = self._clock.monotonic_us()
        if not batch.wall_us or self._was_stopped(now_us) or now_us < self._stale_until_us:
            return
        known = self._servers.get(batch.sender)
        if known is None:
            self._servers[batch.sender] = _OffsetSpan(now_us, batch.wall_us - now_us)
        else:
            known.note(now_us, batch.wall_us - now_us)

    def _was_stopped(self, now_us: int) -> bool:
        return now_us - self._updated_us > KEPT_SPANS * SPAN_US

    def known_us(self) -> dict[ServerUuid, int]:
        """Return the current offsets in microseconds, by server; positive: that server's clock is ahead."""
        now_us = self._clock.monotonic_us()
        since_us, own_us = now_us - KEPT_SPANS * SPAN_US, self._clock.wall_us() - now_us
        return {u: h.offset_us - own_us for u, h in self._servers.items() if h.at_us > since_us}

    def latest_us(self) -> dict[ServerUuid, int]:
        """Return the offsets in microseconds by each server's last span, complete or not.

        They are kept for long, since followers receive each other's batches in elections only.
        """
        now_us = self._clock.monotonic_us()
        since_us, own_us = now_us - LATEST_TTL_US, self._clock.wall_us() - now_us
        return {u: h.best_us - own_us for u, h in self._servers.items() if h.began_us > since_us}

    def update(self) -> None:
        """Drop old offsets, and compare the others with the limit. Called once a second, for all groups."""
        now_us = self._clock.monotonic_us()
        if self._was_stopped(now_us):
            self._stale_until_us = now_us + SPAN_US
        self._updated_us, since_us = now_us, now_us - LATEST_TTL_US
        for server in [u for u, h in self._servers.items() if h.began_us <= since_us]:
            del self._servers[server]
        self._any_far = any(abs(o) > self._limit_us for o in self.known_us().values())

    def worst_ms(self) -> float:
        """Return the largest absolute offset, in milliseconds."""
        return max((abs(o) for o in self.known_us().values()), default=0) / 1000

    def transfer_leadership(self, node: RaftNode) -> None:
        """Transfer leadership if the local clock is far from a majority's, and some voter's is not."""
        if not self._any_far or not node.is_leader or node.view.transferring:
            return
        known = self.known_us()
        config, matches = node.config, node.view.matches()
        clocks = {node.uuid: 0} | {u: known[u] for u in config.voters if u in known}
        needed = majority(len(config.voters))

        def count_near(uuid: ServerUuid) -> int:
            return sum(abs(clocks[uuid] - o) <= self._limit_us for o in clocks.values())

        if len(clocks) - count_near(node.uuid) < needed:
            return
        candidates = [
            m.uuid for m in config.members if m.uuid in clocks and m.voter and m.electable
        ]
        near = [u for u in candidates if count_near(u) >= needed and u in matches]
        if near:
            to = max(near, key=lambda u: matches[u])
            log.warning(
                "this server's clock is %.1f s from those of a majority: %s leads next",
                abs(clocks[to]) / 1e6, to,
            )  # fmt: skip
            node.transfer(to)
