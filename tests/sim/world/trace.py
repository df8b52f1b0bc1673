"""The event trace: a running hash of all events, and the last lines in readable form.

Two runs of one seed give the same digest, in any two processes. Nothing that differs between runs
(object ids, task numbers, real time) may be noted.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from nyala.raft.messages import PeerBatch


class Recorder(Protocol):
    """Recorder of readable events; see `transcript.py`."""

    def note(self, at_us: int, kind: str, text: str) -> None:
        """Take one event."""
        ...

    def sent(self, at_us: int, name: str, address: str, batch: PeerBatch, copies: int) -> None:
        """Record a sent batch."""
        ...


class Trace:
    """Hash and tail of a run's events.

    Args:
        keep: number of last lines kept for a failure report.
    """

    def __init__(self, keep: int = 400) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.tail: deque[str] = deque(maxlen=keep)
        self.counts: Counter[str] = Counter()
        self.now_us: Callable[[], int] = int
        self.recorder: Recorder | None = None

    def note(self, kind: str, text: str) -> None:
        """Add one event: its kind, which is counted, and its details."""
        now_us = self.now_us()
        line = f"{now_us} {kind} {text}"
        self.counts[kind] += 1
        self._hash.update(f"{line}\n".encode())
        self.tail.append(line)
        if self.recorder is not None:
            self.recorder.note(now_us, kind, text)

    def digest(self) -> str:
        """Hash of everything noted so far."""
        return self._hash.hexdigest()
