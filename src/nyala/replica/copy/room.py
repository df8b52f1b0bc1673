"""Limit of disk space for copies that are under way: `copy_staged_bytes`, on each server, at each end.

On the target it counts staged files until they are installed; on the source, the files of cuts that are being
copied, which compactions would otherwise remove. One copy is always admitted, however large. A target queues
and holds nothing at its source meanwhile; a source refuses, and is asked again. On the loop only.
"""

from collections.abc import Hashable

from nyala.common.errors import Throttled
from nyala.env.clock import Clock

TOLD_US = 10_000_000
"""A source that refused copies says so for so long after the last one."""


class CopyRoom:
    """The bytes of one end: of all copies into a server, or out of it.

    Args:
        limit_bytes: of all copies together, if there are several.
        clock: tells how long ago a copy was refused.

    Attributes:
        used_bytes: of those that were let in and are not over.
    """

    def __init__(self, limit_bytes: int, clock: Clock) -> None:
        self.used_bytes = 0
        self._limit = limit_bytes
        self._clock = clock
        self._of: dict[Hashable, int] = {}
        self._line: dict[Hashable, None] = {}  # those that wait, the first one first
        self._refused_us: int | None = None

    def take(self, name: Hashable, size_bytes: int) -> bool:
        """Let a copy in if there is room and none waits before it; else it has nothing, and waits.

        One that was let in before keeps its turn: it begins its session anew, and may find another size.

        Args:
            name: of the copy; `drop` takes it back, also what only waits.
            size_bytes: all that it will have.
        """
        first = name if name in self._of else next(iter(self._line), name)
        self._set(name, None)
        if first == name and self._fits(size_bytes):
            self._line.pop(name, None)
            self._set(name, size_bytes)
            return True
        self._line[name] = None
        return False

    def claim(self, name: Hashable, size_bytes: int) -> None:
        """Let a copy in that cannot wait here.

        Raises:
            Throttled: there is no room.
        """
        if not self._fits(size_bytes):
            self._refused_us = self._clock.monotonic_us()
            raise Throttled(
                f"files of copies that are made from this server have {self.used_bytes} bytes, and "
                f"{size_bytes} more are asked for, but copy_staged_bytes is {self._limit}; try again when "
                "one has ended",
                {"retry_after_ms": "1000"},
            )
        self._set(name, size_bytes)

    def drop(self, name: Hashable) -> None:
        """A copy is over, whether it was let in or not."""
        self._line.pop(name, None)
        self._set(name, None)

    @property
    def waiting(self) -> int:
        """Number of copies that wait until there is room."""
        return len(self._line)

    @property
    def refusing(self) -> bool:
        """True if a copy was refused of late."""
        now_us, refused_us = self._clock.monotonic_us(), self._refused_us
        return refused_us is not None and now_us - refused_us < TOLD_US

    def _fits(self, size_bytes: int) -> bool:
        return not self._of or self.used_bytes + size_bytes <= self._limit

    def _set(self, name: Hashable, size_bytes: int | None) -> None:
        self.used_bytes -= self._of.pop(name, 0)
        if size_bytes is not None:
            self._of[name] = size_bytes
            self.used_bytes += size_bytes
