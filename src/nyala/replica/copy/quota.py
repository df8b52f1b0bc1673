"""Limit of disk space for copies under way: `copy_staged_bytes`, at the source and at the target.

A target counts staged files until they are installed. A source counts the files of flush points that are
being copied, which compactions would otherwise remove. One copy is always admitted, however large. A target
that has to wait is queued and holds no session at its source meanwhile; a source refuses, and its target
retries. On the loop only.
"""

from collections.abc import Hashable

from nyala.common.errors import Throttled
from nyala.env.clock import Clock

REFUSED_TTL_US = 10_000_000
"""Time for which a source reports that it refused a copy, in microseconds."""


class CopyQuota:
    """Disk space of all copies to a server, or of all copies from it.

    Args:
        limit_bytes: limit of all copies together; a single copy may exceed it.
        clock: monotonic time.

    Attributes:
        used_bytes: bytes used by the copies that were admitted and have not ended.
    """

    def __init__(self, limit_bytes: int, clock: Clock) -> None:
        self.used_bytes = 0
        self._limit = limit_bytes
        self._clock = clock
        self._admitted: dict[Hashable, int] = {}
        self._queue: dict[Hashable, None] = {}  # waiting copies, in order of arrival
        self._refused_us: int | None = None

    def admit(self, name: Hashable, size_bytes: int) -> bool:
        """Admit a copy if it fits and no other waits before it; otherwise queue it.

        Return whether it was admitted.

        A copy that was admitted before keeps its place in the order when it starts again with another size.

        Args:
            name: name of the copy, for `release`.
            size_bytes: size in bytes of all its files.
        """
        first = name if name in self._admitted else next(iter(self._queue), name)
        self._set(name, None)
        if first == name and self._fits(size_bytes):
            self._queue.pop(name, None)
            self._set(name, size_bytes)
            return True
        self._queue[name] = None
        return False

    def reserve(self, name: Hashable, size_bytes: int) -> None:
        """Admit a copy, without queueing it.

        Raises:
            Throttled: it does not fit beside the copies under way.
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

    def release(self, name: Hashable) -> None:
        """Release the space of a copy that has ended, or remove it from the queue."""
        self._queue.pop(name, None)
        self._set(name, None)

    @property
    def waiting(self) -> int:
        """Number of queued copies."""
        return len(self._queue)

    @property
    def refusing(self) -> bool:
        """True if a copy was refused recently."""
        now_us, refused_us = self._clock.monotonic_us(), self._refused_us
        return refused_us is not None and now_us - refused_us < REFUSED_TTL_US

    def _fits(self, size_bytes: int) -> bool:
        return not self._admitted or self.used_bytes + size_bytes <= self._limit

    def _set(self, name: Hashable, size_bytes: int | None) -> None:
        self.used_bytes -= self._admitted.pop(name, 0)
        if size_bytes is not None:
            self._admitted[name] = size_bytes
            self.used_bytes += size_bytes
