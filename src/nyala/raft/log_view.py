"""The core's view of the log: a cached tail of entries, the terms of all entries, and its indexes.

    base <= applied <= committed <= last        applied <= stable <= handed <= last

`handed` is the last index given to the host for writing, `stable` the last one that it reported as durable.
When the cache is over its limit, applied entries are evicted from its front; their terms stay, as runs, so
that log matching needs no disk. The protocol rules are in `roles/`.
"""

from bisect import bisect_right
from collections.abc import Sequence

from nyala.common.errors import LogGap
from nyala.common.ids import OpId
from nyala.raft.messages import Entry

ENTRY_OVERHEAD_BYTES = 64
"""Overhead in bytes that is counted per entry, beside its payload."""


def size_of(entry: Entry) -> int:
    """Return the size of an entry in bytes, as counted in caches and windows."""
    return len(entry.payload) + ENTRY_OVERHEAD_BYTES


def _check_recovered(last: OpId, stamp: int, entry: Entry) -> None:
    op = entry.id
    if op.index != last.index + 1 or op.term < last.term or entry.stamp <= stamp:
        raise LogGap(
            f"entry {op} stamped {entry.stamp} cannot follow {last} stamped {stamp}; "
            "the log of this replica is damaged"
        )


class TermRuns:
    """Terms of all indexes from a base on, as runs."""

    __slots__ = ("_starts", "_terms")

    def __init__(self, base: OpId) -> None:
        self._starts = [base.index]  # first index of each run
        self._terms = [base.term]

    def term(self, index: int) -> int:
        """Return the term at `index`, which is not below the base."""
        if index >= self._starts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._starts, index) - 1]

    def at_or_below(self, index: int, term: int) -> OpId | None:
        """Return the last op id at or below `index` whose term is at or below `term`; None: there is none."""
        for start, found in zip(reversed(self._starts), reversed(self._terms), strict=True):
            if start <= index and found <= term:
                return OpId(found, index)
            index = min(index, start - 1)
        return None

    def append(self, op: OpId) -> None:
        """Add the next index."""
        if op.term != self._terms[-1]:
            self._starts.append(op.index)
            self._terms.append(op.term)

    def truncate(self, first: int) -> None:
        """Remove the indexes from `first` on, which is above the base."""
        while self._starts[-1] >= first:
            self._starts.pop()
            self._terms.pop()


class LogView:
    """Log of one group; entries are appended and truncated at its end, never changed.

    Args:
        base: op id of the entry before the first.
        base_stamp: timestamp of `base`, or of the last entry in `skipped`.
        entries: recovered entries after it, or after the last one in `skipped`; durable.
        cache_bytes: limit of the applied entries that are kept in memory.
        skipped: op ids of committed entries after the base that stay on disk: the first of each term, and the
            last. Those that are not applied yet are read when they are due.

    Raises:
        LogGap: an index is missing, or terms or timestamps decrease.
    """

    __slots__ = (
        "_bytes", "_entries", "_floor_stamp", "_runs", "applied", "base", "cache_bytes",
        "committed", "first_cached", "handed", "handed_apply", "last", "last_stamp", "loading",
        "stable",
    )  # fmt: skip

    def __init__(
        self,
        base: OpId,
        base_stamp: int,
        entries: Sequence[Entry],
        cache_bytes: int,
        skipped: Sequence[OpId] = (),
    ) -> None:
        self.base = self.last = base
        self.last_stamp = self._floor_stamp = base_stamp
        self._runs = TermRuns(base)
        for op in skipped:
            self._runs.append(op)
            self.last = op
        self.first_cached = self.last.index + 1  # index of _entries[0], were there one
        self._entries: list[Entry] = []
        self._bytes = 0
        self.cache_bytes = cache_bytes
        self.committed = self.applied = self.handed_apply = base.index
        for entry in entries:
            _check_recovered(self.last, self.last_stamp, entry)
            self.append(entry)
        self.handed = self.stable = self.last.index
        self.loading = False

    # ---- queries ----------------------------------------------------------------------------

    def term(self, index: int) -> int:
        """Return the term of the entry at `index`, from `base` to the last."""
        assert self.base.index <= index <= self.last.index, f"{index} not in {self!r}"
        return self._runs.term(index)

    def op_id(self, index: int) -> OpId:
        """Return the op id of the entry at `index`, from `base` to the last."""
        return OpId(self.term(index), index)

    def holds(self, op: OpId) -> bool:
        """Return whether the entry at `op.index` is known and of `op.term`."""
        return self.base.index <= op.index <= self.last.index and self.term(op.index) == op.term

    def at_or_below(self, index: int, term: int) -> OpId:
        """Return the last op id at or below `index` whose term is at or below `term`; `base` if none."""
        return self._runs.at_or_below(min(index, self.last.index), term) or self.base

    def stamp(self, index: int) -> int:
        """Return the timestamp of the entry at `index`, which is cached or directly before the cache."""
        assert self.first_cached - 1 <= index <= self.last.index, f"{index} not in memory: {self!r}"
        return (
            self._entries[index - self.first_cached].stamp
            if index >= self.first_cached
            else self._floor_stamp
        )

    def slice(self, first: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from `first` on, at least one if there is one; None: they are not in memory."""
        if first < self.first_cached:
            return None
        start = stop = first - self.first_cached
        room = max_bytes
        while stop < len(self._entries):
            room -= size_of(self._entries[stop])
            if room < 0 and stop > start:
                break
            stop += 1
        return tuple(self._entries[start:stop])

    def __repr__(self) -> str:
        return (
            f"LogView(base={self.base}, cached from {self.first_cached}, applied={self.applied}, "
            f"committed={self.committed}, stable={self.stable}, last={self.last})"
        )

    # ---- changes -------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Append an entry; the caller has checked entries that were received."""
        op = entry.id
        assert op.index == self.last.index + 1, f"{op} after {self.last}"
        assert op.term >= self.last.term, f"terms fall: {op} after {self.last}"
        assert entry.stamp > self.last_stamp, f"stamps fall: {entry.stamp} <= {self.last_stamp}"
        self._runs.append(op)
        self._entries.append(entry)
        self._bytes += size_of(entry)
        self.last = op
        self.last_stamp = entry.stamp

    def truncate(self, first: int) -> None:
        """Remove the entries from `first` on, which are not committed."""
        assert self.committed < first <= self.last.index, f"truncate at {first}: {self!r}"
        cut = first - self.first_cached
        self._bytes -= sum(size_of(e) for e in self._entries[cut:])
        del self._entries[cut:]
        self._runs.truncate(first)
        self.last = OpId(self._runs.term(first - 1), first - 1)
        self.last_stamp = self.stamp(first - 1)
        self.handed = min(self.handed, first - 1)
        self.stable = min(self.stable, first - 1)

    def note_durable(self, op: OpId) -> None:
        """Record that everything up to `op` is durable."""
        assert op.index <= self.handed, f"{op} is durable, but was never handed out: {self!r}"
        assert self.holds(op), f"{op} is durable, but not in the log: {self!r}"
        self.stable = max(self.stable, op.index)

    def commit(self, index: int) -> None:
        """Record that entries up to `index` are committed."""
        assert self.committed <= index <= self.last.index, f"commit {index}: {self!r}"
        self.committed = index

    def take_unwritten(self) -> tuple[Entry, ...]:
        """Return the entries that the host was not given to write yet; each is returned once."""
        if self.handed == self.last.index:
            return ()
        taken = tuple(self._entries[self.handed + 1 - self.first_cached :])
        self.handed = self.last.index
        return taken

    def take_applicable(self) -> tuple[Entry, ...]:
        """Return the entries that are committed and durable here; each is returned once."""
        upto = min(self.committed, self.stable)
        if upto <= self.handed_apply or self.reads_from_disk:
            return ()
        start = self.handed_apply + 1 - self.first_cached
        self.handed_apply = upto
        return tuple(self._entries[start : upto + 1 - self.first_cached])

    @property
    def reads_from_disk(self) -> bool:
        """True if the next entries to be applied have to be read from the disk first."""
        return self.handed_apply + 1 < self.first_cached

    def take_missing(self) -> int:
        """Return the index from which entries have to be read from the log next; 0: none, or not yet.

        Entries of the previous read are applied first, so memory holds one read at a time.
        """
        if not self.reads_from_disk or self.loading or self.applied < self.handed_apply:
            return 0
        self.loading = True
        return self.handed_apply + 1

    def load(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Take entries read from the log; return those that are to be applied."""
        assert entries, f"committed entries are not in the log any more: {self!r}"
        self.loading = False
        found = tuple(e for e in entries if e.id.index < self.first_cached)
        assert found[0].id.index == self.handed_apply + 1, f"{found[0].id} was read: {self!r}"
        self.handed_apply = found[-1].id.index
        return found

    def note_applied(self, index: int) -> None:
        """Record that entries up to `index` are applied, and evict those over the limit."""
        assert index <= self.handed_apply, f"applied {index} was never handed out: {self!r}"
        self.applied = max(self.applied, index)
        self.shrink(self.cache_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the entries in memory."""
        return self._bytes

    def shrink(self, limit_bytes: int) -> None:
        """Evict the oldest applied entries until at most `limit_bytes` are left."""
        if self._bytes <= limit_bytes:
            return
        upto = self.applied + 1 - self.first_cached  # applied entries are durable
        drop = 0
        while drop < upto and self._bytes > limit_bytes:
            self._bytes -= size_of(self._entries[drop])
            drop += 1
        if drop:
            self._floor_stamp = self._entries[drop - 1].stamp
            self.first_cached += drop
            del self._entries[:drop]
