"""History holds: times that readers request this server to keep readable, per tablet, with a time to live.

In memory, by the monotonic clock. A client requests a hold at every replica of a tablet and renews it every
few seconds, so it survives leader changes and restarts: a server that has just started collects no history
until clients have had time to renew their holds. Used on the event loop only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nyala.common.errors import HistoryGone, InvalidArgument, Throttled
from nyala.common.ids import TabletId
from nyala.env.clock import Clock

MAX_TTL_MS = 7 * 86_400_000
MAX_HOLDS = 1000
"""Maximum number of holds of one tablet."""
MAX_OF_OWNER = 500
"""Maximum number of holds of one user on one tablet."""
MAX_ID_BYTES = 64
RENEWAL_GRACE_MS = 30_000
"""Milliseconds after a start in which no history is collected, so that clients can renew their holds."""
SWEEP_MS = 60_000
"""Milliseconds between two removals of tablets without holds."""


@dataclass(frozen=True, slots=True)
class HistoryHold:
    """A hold of one reader on a tablet.

    Attributes:
        at: hybrid time that stays readable.
        expires_us: monotonic time, in microseconds.
    """

    at: int
    expires_us: int


@dataclass(slots=True)
class _TabletHolds:
    holds: dict[tuple[str, str], HistoryHold] = field(default_factory=dict)  # by owner and name
    collecting: int = 0  # history at or below it may be removed right now


class HistoryHolds:
    """The history holds of one server.

    Args:
        clock: monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[TabletId, _TabletHolds] = {}
        self._quiet_until_us = clock.monotonic_us() + RENEWAL_GRACE_MS * 1000
        self._swept_us = clock.monotonic_us()

    def hold(
        self, tablet: TabletId, name: str, at: int, ttl_ms: int, horizon: int, owner: str = ""
    ) -> None:
        """Add or replace a hold of an owner, which no one else replaces or releases.

        Args:
            tablet: id of a tablet of this server.
            name: name of the hold, unique among all clients.
            at: hybrid time.
            ttl_ms: how long from now.
            horizon: earliest time at which the tablet can be read.
            owner: name of the user; empty: unknown, as without certificates.

        Raises:
            HistoryGone: the time cannot be read any more, or its history is being removed.
            InvalidArgument: an invalid name or time to live.
            Throttled: the tablet has too many holds, or too many of this owner.
        """
        if not 0 < len(name.encode()) <= MAX_ID_BYTES or not 0 < ttl_ms <= MAX_TTL_MS:
            raise InvalidArgument(
                f"the hold {name[:MAX_ID_BYTES]!r} for {ttl_ms} ms is invalid: a name has 1 to "
                f"{MAX_ID_BYTES} bytes, "
                f"a time to live is 1 to {MAX_TTL_MS} ms"
            )
        self._sweep()
        kept = self._kept.setdefault(tablet, _TabletHolds())
        floor = max(horizon, kept.collecting)
        if at < floor:
            raise HistoryGone(
                f"the time {at} lies below {floor}, the start of the history that is kept; hold a later time",
                {"horizon": str(floor)},
            )
        self._expire(kept)
        own = sum(1 for known, _ in kept.holds if known == owner) if owner else 0
        if (owner, name) not in kept.holds and own >= MAX_OF_OWNER:
            raise Throttled(
                f"{owner} has {own} holds on tablet {tablet}, which is the limit; release one first"
            )
        if (owner, name) not in kept.holds and len(kept.holds) >= MAX_HOLDS:
            raise Throttled(
                f"{MAX_HOLDS} holds exist on tablet {tablet}, which is the limit; release one first"
            )
        kept.holds[owner, name] = HistoryHold(at, self._clock.monotonic_us() + ttl_ms * 1000)

    def release(self, tablet: TabletId, name: str, owner: str = "") -> None:
        """Release a hold, if it exists.

        Args:
            tablet: id of the tablet.
            name: name of the hold.
            owner: who made it, as for `hold`.
        """
        kept = self._kept.get(tablet)
        if kept is not None:
            kept.holds.pop((owner, name), None)
            if not kept.holds and not kept.collecting:
                del self._kept[tablet]

    def of(self, tablet: TabletId) -> list[tuple[str, HistoryHold, int]]:
        """Return a tablet's holds: name, hold, and the milliseconds left."""
        kept = self._kept.get(tablet)
        if kept is None:
            return []
        self._expire(kept)
        now_us = self._clock.monotonic_us()
        return [
            (name, hold, (hold.expires_us - now_us) // 1000)
            for (_, name), hold in sorted(kept.holds.items(), key=lambda item: item[0])
        ]

    def left_ms(self, tablet: TabletId, below: int) -> int:
        """Return the milliseconds for which any time below `below` is, or may be, held; 0: none is.

        After a start, clients may still have holds that they have not renewed here yet.
        """
        grace_ms = -(-(self._quiet_until_us - self._clock.monotonic_us()) // 1000)
        held = (left for _, hold, left in self.of(tablet) if hold.at < below)
        return max((0, grace_ms, *held))

    def limit(self, tablet: TabletId, horizon: int | None) -> int | None:
        """Return the horizon that holds allow a compaction now; None: no history may be removed."""
        if horizon is None or self._clock.monotonic_us() < self._quiet_until_us:
            return None
        return min([horizon, *(hold.at for _, hold, _ in self.of(tablet))])

    @contextmanager
    def collecting(self, tablet: TabletId, horizon: int | None) -> Iterator[int | None]:
        """Yield the horizon for a compaction; during the block no time below it can be held."""
        horizon = self.limit(tablet, horizon)
        kept = self._kept.setdefault(tablet, _TabletHolds())
        kept.collecting = horizon or 0
        try:
            yield horizon
        finally:
            kept.collecting = 0
            if not kept.holds:
                self._kept.pop(tablet, None)

    def _sweep(self) -> None:
        """Drop the tablets whose holds have all expired, at intervals: they may be deleted."""
        now_us = self._clock.monotonic_us()
        if now_us - self._swept_us < SWEEP_MS * 1000:
            return
        self._swept_us = now_us
        for tablet, kept in list(self._kept.items()):
            self._expire(kept)
            if not kept.holds and not kept.collecting:
                del self._kept[tablet]

    def _expire(self, kept: _TabletHolds) -> None:
        now_us = self._clock.monotonic_us()
        for name in [n for n, h in kept.holds.items() if h.expires_us <= now_us]:
            del kept.holds[name]
