"""The scans that are open on this server: their number is limited, and a page lists them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from nyala.common.errors import Throttled
from nyala.env.clock import Clock
from nyala.security.identity import user_name
from nyala.web.pages import Listing


@dataclass(slots=True)
class OpenScan:
    """One scan.

    Attributes:
        tablet: id of its tablet.
        user: who runs it; empty: a server, or unknown.
        kind: rows, count, keys or changes.
        since_us: monotonic time at which it began.
        at: hybrid time of its snapshot; 0: not chosen yet.
        rows: number of rows that were sent.
    """

    tablet: str
    user: str
    kind: str
    since_us: int
    at: int = 0
    rows: int = 0


class OpenScans:
    """Used on the event loop.

    Args:
        clock: measures their age.
        limit: maximum number of open scans.
    """

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._numbers = count(1)
        self._open: dict[int, OpenScan] = {}

    @contextmanager
    def hold(self, tablet: str, kind: str) -> Iterator[OpenScan]:
        """Yield an entry that is listed until the end of the block.

        Args:
            tablet: its id.
            kind: of the scan.

        Raises:
            Throttled: too many scans are open.
        """
        if len(self._open) >= self._limit:
            raise Throttled(
                f"{len(self._open)} scans are open on this server, the limit of scanners_max; retry",
                {"retry_after_ms": "100"},
            )
        number = next(self._numbers)
        self._open[number] = OpenScan(tablet, user_name(), kind, self._clock.monotonic_us())
        try:
            yield self._open[number]
        finally:
            del self._open[number]

    def page(self) -> Listing:
        """Return the page of the open scans, the oldest first."""
        now_us = self._clock.monotonic_us()
        rows = [
            (s.tablet, s.kind, s.user or "-", f"{(now_us - s.since_us) / 1e6:.1f}", str(s.at), str(s.rows))
            for s in self._open.values()
        ]  # fmt: skip
        return Listing("open scans", ("tablet", "kind", "user", "age s", "at", "rows sent"), rows)
