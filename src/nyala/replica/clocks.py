"""Comparison of this server's clock with those of its peers, and the peers whose messages it refuses.

The problems found are for operators: `nyala cluster ksck`, the log and /metrics show them. On the loop only.
"""

import logging
from collections.abc import Callable

from nyala.common.ids import ServerUuid
from nyala.common.metrics import Metrics
from nyala.env.disciplined_clock import ClockVerdict
from nyala.env.server_clock import FarAhead, ServerClock, duration
from nyala.raft.messages import PeerBatch
from nyala.replica.clock_offsets import ClockOffsets

log = logging.getLogger(__name__)

REFUSED_TTL_US = 10_000_000
"""Time for which a sender is reported after its last refused batch, in microseconds."""
PAGE = "docs/operate/clocks.md"


class Clocks:
    """The local clock, and the clocks of the peers of this process.

    Args:
        clock: its own.
        offsets: offsets of other servers' wall clocks from the local one.
        address: returns the address of a server; empty: not known.
        metrics: metrics of the process.
    """

    def __init__(
        self,
        clock: ServerClock,
        offsets: ClockOffsets,
        address: Callable[[ServerUuid], str],
        metrics: Metrics,
    ) -> None:
        self._clock = clock
        self._offsets = offsets
        self._address = address
        # By server: time of the last refusal (monotonic), and how far ahead it was.
        self._refused: dict[ServerUuid, tuple[int, int]] = {}
        self._problems: dict[str, str] = {}
        clock.physical.compare(lambda: offsets.latest_us().values())
        gauge = metrics.gauge
        gauge("clock_offset_ms", "Largest known to a peer's.", read=offsets.worst_ms)
        gauge(
            "clock_jumped_ms",
            "How far the wall clock is ahead of the time that the server goes by.",
            read=lambda: -clock.physical.ahead_us() / 1000,
        )
        gauge(
            "clock_ahead_ms",
            "How far the hybrid clock is ahead of the time that the server goes by.",
            read=lambda: max(0, clock.ahead_us(clock.seen)) / 1000,
        )
        gauge(
            "clock_refused_servers",
            "Servers whose hybrid clocks are too far ahead, so that nothing is taken from them.",
            read=lambda: len(self._refused),
        )

    def merge(self, batch: PeerBatch) -> bool | None:
        """Merge the time of a batch, as `ServerClock.merge`; None: one of the two clocks is wrong.

        The batch must then be ignored as a whole: what its messages assert holds at that time only.
        """
        try:
            return self._clock.merge(batch.hlc)
        except FarAhead:
            now_us = self._clock.physical.monotonic_us()
            self._refused[batch.sender] = now_us, self._clock.ahead_us(batch.hlc)
            return None

    def is_too_far_ahead(self, stamp: int) -> bool:
        """Return whether an entry's stamp is too far ahead of the clock, or above its durable ceiling."""
        try:
            return not self._clock.merge(stamp)
        except FarAhead:
            return True

    def update(self) -> None:
        """Compare the clocks, once a second; the start and the end of each problem are logged."""
        self._offsets.update()
        since_us = self._clock.physical.monotonic_us() - REFUSED_TTL_US
        if self._refused:
            self._refused = {u: r for u, r in self._refused.items() if r[0] > since_us}
        found = self._find_problems()
        if found or self._problems:
            for key, text in found.items():
                if key not in self._problems:
                    log.warning("%s", text)
            for key in self._problems:
                if key not in found:
                    log.warning("%s: it is right again", key)
        self._problems = found

    def problems(self) -> list[str]:
        """Return the problems of clocks, as sentences for operators."""
        return list(self._problems.values())

    def _find_problems(self) -> dict[str, str]:
        """Return the present problems, by a key that is the same for as long as a problem lasts."""
        clock, found = self._clock, {}
        verdict, offset_us = clock.physical.verdict()
        if verdict is ClockVerdict.WRONG:
            found["this machine's wall clock"] = (
                f"this machine's wall clock is {_offset_text(-offset_us)} those of most servers that it "
                "hears of; it goes by theirs until a time daemon (NTP) has set it right"
            )
        else:
            for server, far_us in self._offsets.latest_us().items():
                if abs(far_us) > clock.limit_us:
                    found[f"the wall clock of {server}"] = (
                        f"the wall clock of {self._name(server)} is {_offset_text(far_us)} this machine's: "
                        "let a time daemon (NTP) set the one right that is wrong"
                    )
        ahead_us = clock.ahead_us(clock.seen) + clock.physical.ahead_us()
        if ahead_us > clock.limit_us:
            found["this server's hybrid clock"] = (
                f"this server's hybrid clock is {duration(ahead_us)} ahead of the wall clock: servers that "
                f"are not refuse all that it sends. What to do: {PAGE}"
            )
        for server, (_, far_us) in self._refused.items():
            found[f"the hybrid clock of {server}"] = (
                f"all that {self._name(server)} sends is refused: its hybrid clock is {duration(far_us)} "
                f"ahead of this server's time, and clock_max_ahead_ms is {clock.limit_us // 1000}. "
                f"What to do: {PAGE}"
            )
        return found

    def _name(self, server: ServerUuid) -> str:
        address = self._address(server)
        return f"{server} at {address}" if address else str(server)


def _offset_text(ahead_us: int) -> str:
    return f"{duration(ahead_us)} {'ahead of' if ahead_us > 0 else 'behind'}"
