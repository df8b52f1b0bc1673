"""The event trace: a running hash of all that happened, and the last lines for a person.

Two runs of one seed give the same digest, in any two processes. Nothing that differs between runs
(object ids, task numbers, real time) may be noted.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable


class Trace:
    """Hash and tail of a run's events.

    Args:
        keep: how many of the last lines are kept for a failure report.
    """

    def __init__(self, keep: int = 400) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.tail: deque[str] = deque(maxlen=keep)
        self.counts: Counter[str] = Counter()
        self.now_us: Callable[[], int] = int
        self.echo: Callable[[str], None] | None = None

    def note(self, kind: str, text: str) -> None:
        """Add one event: a kind that is counted, and whatever tells it from others of its kind."""
        line = f"{self.now_us()} {kind} {text}"
        self.counts[kind] += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.tail.append(line)
        if self.echo is not None:
            self.echo(line)

    def digest(self) -> str:
        """Hash of everything noted so far."""
        return self._hash.hexdigest()
