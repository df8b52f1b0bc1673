"""Durable state of each group, its sync having returned: log records, votes in superblocks, and
the cuts of copied state machines' files.

`DurableLog` observes one `SimDisk` and reads the records written, so that a check knows at any
time, for a running or a stopped server, whether an entry or a vote would survive a power failure.
It knows the formats of the two logs (nyala's and `stores.PlainLog`) and of the superblocks of deleted
replicas, and does not use the server.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from nyala.common.errors import Corrupt
from nyala.common.ids import OpId
from nyala.replica import superblock
from nyala.wal.segments.format import (
    RECORD_MAGIC,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    RecordKind,
    unpack_record,
    unpack_segment_header,
)
from tests.sim.systems.moved_machine import read_manifest
from tests.sim.world.inode import Inode
from tests.sim.world.names import Names

PLAIN_LOG = "/core/log"
PLAIN_GROUP = "1" * 32
MACHINES = "/data/data/"


@dataclass(slots=True)
class Kept:
    """Durable state of one group.

    Attributes:
        term: of the last hard state.
        votes: votes that were durable once, by term.
        terms: terms of the entries by index.
        last: highest index of an entry.
        files: index up to which the machine's files contain all committed entries.
    """

    term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    last: int = 0
    files: int = 0

    def holds(self, op: OpId) -> bool:
        """Return whether the entry, or its effect in the files, is durable."""
        return self.terms.get(op.index) == op.term or op.index <= self.files

    def entry(self, term: int, index: int) -> None:
        """Add an entry; it replaces entries at and above its index, unless it exists already."""
        if self.terms.get(index) == term:
            return  # a recovery has rewritten its tail
        for above in range(index + 1, self.last + 1):
            self.terms.pop(above, None)
        self.terms[index] = term
        self.last = index

    def hard_state(self, term: int, vote: str) -> None:
        """Set a term and vote ("": none)."""
        self.term = max(self.term, term)
        if vote:
            self.votes[term] = vote


@dataclass(slots=True)
class Fact:
    """One record that is being written: an entry (index > 0), or a hard state."""

    group: str
    term: int
    index: int
    vote: str
    start: int
    data: bytes
    synced: bool = False
    lost: bool = False  # its sync has failed: no later one makes it durable


class DurableLog:
    """Observer of one disk.

    Args:
        names: directory tree of the disk: a file whose name is not durable is lost in a power failure.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._groups: dict[str, Kept] = {}
        self._pending: dict[Inode, list[Fact]] = {}
        self._sequences: dict[Inode, int] = {}
        self._manifests: dict[Inode, None] = {}  # written, not yet durable

    def group(self, group: str) -> Kept:
        """Return the durable state of a group."""
        kept = self._groups.get(group)
        if kept is None:
            kept = self._groups[group] = Kept()
        return kept

    def image(self) -> dict[str, Kept]:
        """Return the durable state of each group."""
        return copy.deepcopy(self._groups)

    def put_back(self, image: dict[str, Kept], files: dict[str, Inode]) -> None:
        """Set the durable state of a disk image with these files by path."""
        self._groups = copy.deepcopy(image)
        self._pending, self._manifests, self._sequences = {}, {}, {}
        for path, inode in files.items():
            if "/wal/" in path:
                self._begin(inode, bytes(inode.content))

    # ---- operations of the disk -----------------------------------------------------------------------

    def wrote(self, path: str, inode: Inode, offset: int, data: bytes) -> None:
        """Bytes were written, not yet synced."""
        if path == PLAIN_LOG:
            facts = _plain(data, offset)
        elif "/wal/" in path:
            skip = 0
            if data.startswith(SEGMENT_MAGIC):
                self._begin(inode, data)
                skip = SEGMENT_HEADER_BYTES
            sequence = self._sequences.get(inode)
            if sequence is None:
                return
            facts = _records(data[skip:], offset + skip, sequence)
        elif "/superblock/" in path:
            facts = _promised(data, path)
        else:
            if "/state" in path:
                self._manifests[inode] = None
            return
        before = self._pending.get(inode, ())  # a rewrite replaces the earlier records
        self._pending[inode] = [*(f for f in before if f.start < offset), *facts]

    def _begin(self, inode: Inode, data: bytes) -> None:
        try:
            self._sequences[inode] = unpack_segment_header(data[:SEGMENT_HEADER_BYTES], "")[1]
        except Corrupt:
            return

    def cut(self, inode: Inode, length: int) -> None:
        """A file was truncated."""
        pending = self._pending.get(inode)
        if pending:
            self._pending[inode] = [f for f in pending if f.start + len(f.data) <= length]

    def synced(self, inode: Inode) -> None:
        """A sync has returned."""
        pending = self._pending.get(inode)
        if pending:
            for fact in pending:
                fact.synced = not fact.lost
            self._settle(inode)
        elif inode in self._manifests:
            self._settle_files(inode)

    def named(self) -> None:
        """A directory was synced."""
        for inode in list(self._pending):
            self._settle(inode)
        for inode in list(self._manifests):
            self._settle_files(inode)

    def sync_failed(self, inode: Inode) -> None:
        """A sync has failed: records that were not durable become so only by chance in a power failure."""
        for fact in self._pending.get(inode, ()):
            fact.lost = not fact.synced

    def crashed(self) -> None:
        """The power failed: unsynced records that are complete on the disk are durable now."""
        for inode, pending in list(self._pending.items()):
            whole = []
            for fact in pending:
                found = inode.content[fact.start : fact.start + len(fact.data)]
                if found != fact.data:
                    break
                whole.append(fact)
                fact.synced = True
            self._pending[inode] = whole
            self._settle(inode)
        self._pending.clear()
        for inode in list(self._manifests):
            self._settle_files(inode)
        self._manifests.clear()

    def _settle_files(self, inode: Inode) -> None:
        """Record the cut of a manifest once it is complete and in a replica's folder."""
        place = self._names.place(inode)
        if inode.changes or not place.startswith(MACHINES):
            return
        del self._manifests[inode]
        if not inode.content.startswith(b'{"parts"', 4):
            return  # of a machine that is never copied: its log has all entries
        try:
            cut = read_manifest(bytes(inode.content))["cut"]
        except Corrupt:
            return
        kept = self.group(place[len(MACHINES) :].partition("/")[0])
        kept.files = max(kept.files, cut[1])

    def _settle(self, inode: Inode) -> None:
        if not self._names.durable(inode):
            return
        left = []
        for fact in self._pending.pop(inode):
            kept = self.group(fact.group)
            if not fact.synced:
                left.append(fact)
            elif fact.index:
                kept.entry(fact.term, fact.index)
            else:
                kept.hard_state(fact.term, fact.vote)
        if left:
            self._pending[inode] = left


def _records(data: bytes, offset: int, sequence: int) -> Iterator[Fact]:
    at = 0
    while at >= 0:
        record = unpack_record(data, at, sequence, offset)
        if record is None:  # damaged, and rewritten by a recovery; other groups' records follow
            at = data.find(RECORD_MAGIC, at + 1)
            continue
        raw = data[at : at + record.length]
        if record.kind is RecordKind.ENTRY and record.payload is not None:
            yield Fact(record.group.hex(), record.term, record.index, "", offset + at, raw)
        elif record.kind is RecordKind.HARD_STATE and record.payload is not None:
            vote = record.payload.decode()
            yield Fact(record.group.hex(), record.term, 0, vote, offset + at, raw)
        at += record.length


def _promised(data: bytes, path: str) -> Iterator[Fact]:
    """Return the vote of a tombstone; a partly written file has none."""
    try:
        found = superblock.decode(data, path)
    except Corrupt:
        return
    if found.votes:
        hard = found.hard_state
        yield Fact(found.group, hard.term, 0, hard.vote or "", 0, data)


def _plain(data: bytes, offset: int) -> Iterator[Fact]:
    at = 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        body = data[at + 8 : at + 8 + length]
        if not length or crc32(body) != int.from_bytes(data[at + 4 : at + 8], "little"):
            return
        kind, values = msgspec.json.decode(body)
        raw = data[at : at + 8 + length]
        if kind == "hard":
            yield Fact(PLAIN_GROUP, values[0], 0, values[1] or "", offset + at, raw)
        else:
            yield Fact(PLAIN_GROUP, values[0], values[1], "", offset + at, raw)
        at += 8 + length
