"""Rows of staged batches that are built while they are staged, so that their commit only has to add them.

Consecutive batches of a part that upsert whole rows become a memory rowset: keys encoded, hashed and indexed,
of equal keys the last one live. RESOLVE gives its versions the commit time, ends the older versions of their
keys and adds the rowset to the tablet. This is memory of one replica and no part of its replicated state: the
second flush drops it, and batches that are not built are applied one by one, with the same effect.

Rules: lane APPLY only.
"""

from dataclasses import dataclass

import numpy as np

from nyala.tablet.files.stored_stages import StoredStages
from nyala.tablet.write.apply import CheckedWrite, take_effect
from nyala.tablet.write.stage import PartRows
from nyala.tablet.write.stages import Stages
from nyala.tablet.write.store import RowSet, Store, end_versions

LEAST_BATCH_ROWS = 256
"""Minimum number of rows of a batch that is built: small transactions are applied from their batches."""
LEAST_ROWS = 4_096
"""Minimum number of rows that are added as a rowset of their own: each one slows writes and reads until a
flush."""
DOUBLING = 8
"""Number of rowsets waiting for a flush for which `LEAST_ROWS` is doubled, and again for the next ones: so
many small transactions do not add a rowset each."""
MAX_RUNS = 64
"""Maximum number of such rowsets of a part, and of those that a transaction adds to a tablet."""
OVERHEAD_BYTES = 64 << 10
"""Memory of such a rowset besides its rows, about."""


@dataclass(slots=True, eq=False)
class BuiltRows:
    """Rows of consecutive batches of a part.

    Attributes:
        first: number of the first batch.
        batches: how many batches they are.
        schema_version: of the columns.
        store: a store of nothing but these rows, whose versions begin at stamps of staging.
        flushed: a flush was made since they were begun; the next one drops them.
    """

    first: int
    batches: int
    schema_version: int
    store: Store
    flushed: bool = False

    @property
    def rows(self) -> int:
        """Number of versions; those that a later batch has replaced are included."""
        return self.store.mem.rows

    @property
    def memory_bytes(self) -> int:
        """Approximate memory."""
        return OVERHEAD_BYTES + self.store.mem.data_bytes


def build(store: Store, found: list[PartRows], number: int, write: CheckedWrite) -> int:
    """Add a staged batch to the rows of its part that are built; return the further bytes of memory.

    Args:
        store: of the tablet; it is not changed.
        found: built rows of the part, in the order of their batches.
        number: of the batch in its part.
        write: the batch, which has no errors.
    """
    if not write.whole_rows or len(write) < LEAST_BATCH_ROWS:
        return 0
    version = store.schema.version
    last = found[-1] if found else None
    end = 0 if last is None else last.first + last.batches
    before = 0
    if isinstance(last, BuiltRows) and end == number and last.schema_version == version:
        before = last.memory_bytes
    elif number < end or len(found) >= MAX_RUNS:
        return 0
    else:
        known = Stages(StoredStages(), 0)
        own = Store(store.info, store.seed, store.hash_keys, (), store.retired, known)
        last = BuiltRows(number, 0, version, own)
        found.append(last)
    take_effect(last.store, write)
    last.batches += 1
    return last.memory_bytes - before


def chosen(store: Store, parts: list[list[PartRows]]) -> dict[tuple[int, int], BuiltRows]:
    """Return the built rows that a commit adds, by number of the part and of their first batch.

    The more rowsets wait for a flush, the more rows one has to have; others are applied from their batches.

    Args:
        store: of the tablet.
        parts: built rows of each part that counts.
    """
    least = LEAST_ROWS << len(store.frozen) // DOUBLING
    usable = [
        (r.rows, part, r)
        for part, found in enumerate(parts)
        for r in found
        if isinstance(r, BuiltRows) and r.rows >= least and r.schema_version == store.schema.version
    ]
    usable.sort(key=lambda found: -found[0])
    return {(part, r.first): r for _, part, r in usable[:MAX_RUNS]}


def add(store: Store, built: BuiltRows, at: int) -> None:
    """Add built rows to a tablet, as versions that begin at a commit time.

    Where no other row is live, as after a delete of all, none is looked for.

    Args:
        store: of the tablet; no version begins or ends above the commit time.
        built: the rows, which are used up.
        at: commit time.
    """
    mem = built.store.mem
    mem.date(at)
    others: list[RowSet] = [*store.disks, *store.frozen, store.mem]
    if any(rowset.live for rowset in others):
        live = np.flatnonzero(mem.end_stamps.ends[: mem.rows] == 0)
        located = store.locate(mem.view().keys, mem.hashes, live)
        ended = np.where(located.which >= 0, 0, -1)
        end_versions(located, ended, np.array([at], np.uint64))
        store.live -= located.live
    store.adopt(mem)
    store.live += mem.live
