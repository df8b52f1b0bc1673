"""One simulated file: its content for readers, and after a power failure.

Changes since the last sync are a list with their undo; a crash undoes all and repeats some.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

SECTOR_BYTES = 512
_ZEROS = memoryview(bytes(1 << 20))


@dataclass(slots=True)
class _Change:
    offset: int
    old: bytes
    old_length: int
    new: bytes
    new_length: int
    kept: bool = False  # synced, after a failed sync had lost an earlier change
    lost: bool = False  # lost by a failed sync: no later one brings it back


class Inode:
    """Contents of a file, independent of its names."""

    __slots__ = ("changes", "content")

    def __init__(self) -> None:
        self.content = bytearray()
        self.changes: list[_Change] = []

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite or extend; a gap reads as zeros."""
        self._change(offset, data, max(len(self.content), offset + len(data)))

    def resize(self, length: int) -> None:
        """Cut, or extend with zeros."""
        if length != len(self.content):
            self._change(min(length, len(self.content)), b"", length)

    def _change(self, offset: int, data: bytes, length: int) -> None:
        content = self.content
        old_length = len(content)
        old = bytes(content[offset : offset + len(data)])
        if length < old_length:
            old = bytes(content[length:])
        self.changes.append(_Change(offset, old, old_length, data, length))
        _apply(content, offset, data, length)

    def sync(self) -> None:
        """Make all changes durable, except those that a failed sync has lost."""
        if not any(c.lost for c in self.changes):
            self.changes.clear()
        for change in self.changes:
            change.kept = not change.lost

    def fail_sync(self) -> None:
        """A sync failed: the kernel marks its changes clean though they were never written."""
        for change in self.changes:
            change.lost = not change.kept

    def crash(self, rng: random.Random) -> str:
        """Apply the changes that survived; return the draw for the trace."""
        how = rng.choice(("none", "all", "prefix", "prefix", "sectors"))
        pending, self.changes = self.changes, []
        if not any(not c.kept for c in pending):
            return "synced"
        for change in reversed(pending):
            _undo(self.content, change)
        cut = rng.randrange(sum(not c.kept for c in pending) + 1)
        seen = 0
        for change in pending:
            if change.kept:
                _apply(self.content, change.offset, change.new, _grown(self.content, change))
                continue
            if how == "all" or (how == "prefix" and seen < cut):
                _apply(self.content, change.offset, change.new, _grown(self.content, change))
            elif how == "prefix" and seen == cut and change.new:
                torn = change.new[: rng.randrange(len(change.new) + 1)]
                _apply(
                    self.content,
                    change.offset,
                    torn,
                    max(len(self.content), change.offset + len(torn)),
                )
            elif how == "sectors" and (change.new or rng.random() < 0.5):
                self._some_sectors(rng, change)
            seen += 1
        return how

    def _some_sectors(self, rng: random.Random, change: _Change) -> None:
        """Keep each disk sector of a write or not; the length may have grown all the same."""
        if not change.new:
            _apply(self.content, change.offset, b"", change.new_length)
            return
        end = change.offset + len(change.new)
        start = change.offset
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if rng.random() < 0.5:
                part = change.new[start - change.offset : stop - change.offset]
                _apply(self.content, start, part, max(len(self.content), stop))
            start = stop
        if rng.random() < 0.5:
            _apply(self.content, change.offset, b"", max(len(self.content), change.new_length))


def _grown(content: bytearray, change: _Change) -> int:
    if change.new:
        return max(len(content), change.offset + len(change.new))
    return change.new_length


def _apply(content: bytearray, offset: int, data: Sequence[int] | bytes, length: int) -> None:
    if length < len(content):
        del content[length:]
    elif length > len(content):
        grown = length - len(content)
        content.extend(_ZEROS[:grown] if grown <= len(_ZEROS) else bytes(grown))
    content[offset : offset + len(data)] = data


def _undo(content: bytearray, change: _Change) -> None:
    if change.old_length > len(content):  # it had cut the file
        content.extend(change.old)
        return
    del content[change.old_length :]
    content[change.offset : change.offset + len(change.old)] = change.old
