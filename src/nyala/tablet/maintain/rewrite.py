"""The shared part of flush and compaction: build new files from immutable inputs, then switch to them.

Build runs in lane COMPUTE, switch in lane APPLY. Lane APPLY continues meanwhile: ends of an input's versions
after the flush point are kept by the input (`EndStamps.pending`) and carried over at the switch. The manifest
is saved before anything in memory changes, and old files are removed only after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nyala.common.schema import Column
from nyala.env.files import Files
from nyala.tablet.files import diskrowset, end_stamps, manifest
from nyala.tablet.files.columns import compression_of
from nyala.tablet.files.diskrowset import DiskRowSet
from nyala.tablet.files.dropped_columns import readable
from nyala.tablet.files.end_stamps import Rows, Stamps
from nyala.tablet.files.manifest import Manifest, RowSetEntry
from nyala.tablet.rows.rowset import HashKeys, Int64s, RowSetView
from nyala.tablet.write.store import RowSet, Store


@dataclass(frozen=True, slots=True, eq=False)
class FileTarget:
    """The directory and parameters of new files.

    Attributes:
        files: the file system.
        directory: directory of the tablet.
        hash_keys: the index hash.
    """

    files: Files
    directory: str
    hash_keys: HashKeys


@dataclass(frozen=True, slots=True, eq=False)
class RewriteInput:
    """One rowset that is rewritten.

    Attributes:
        rowset: lane APPLY continues to end its versions.
        view: view of it, when the flush point was fixed.
        ended: rows that had ended at the flush point, with their stamps; later ends are carried over.
    """

    rowset: RowSet
    view: RowSetView
    ended: tuple[Rows, Stamps]

    @staticmethod
    def of(rowset: RowSet, flush_stamp: int) -> "RewriteInput":
        """Return a rowset as an input; its ends are looked at once."""
        return RewriteInput(rowset, rowset.view(), rowset.end_stamps.ended_by(flush_stamp))


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """New files, durable, and what is needed to switch to them.

    Attributes:
        manifest: that names them.
        rowsets: the new ones, open; the live versions are in the first one.
        inputs: what they replace.
        moved: for each input, where each of its rows went in the first new rowset, or -1.
    """

    manifest: Manifest
    rowsets: tuple[DiskRowSet, ...]
    inputs: tuple[RewriteInput, ...]
    moved: tuple[Int64s, ...]


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Parameters of one rewrite.

    Attributes:
        drop_below: versions that ended at or below this stamp are left out.
        split_history: versions that had ended go to a rowset of their own, which reads at the present skip.
            False for a flush, whose columns bypass the page cache, because writers wait for it.
        position: position of the new rowsets in the manifest.
        numbers: four, for files.
    """

    drop_below: int
    split_history: bool
    position: int
    numbers: tuple[int, int, int, int]


def build(
    place: FileTarget, base: Manifest, inputs: Sequence[RewriteInput], plan: RewritePlan
) -> Built:
    """Write new rowsets from several. Lane COMPUTE.

    Args:
        place: files and directory of the output.
        base: the next manifest without the new rowsets: its flush point is that of the new files, its schema
            the one that they are written with.
        inputs: rowsets to rewrite.
        plan: assignment of versions to new rowsets.
    """
    kept = [_kept(i, plan) for i in inputs]
    live, ended = [k[0] for k in kept], [k[1] for k in kept]
    entries = []
    moved = tuple(np.full(s.view.rows, -1, np.int64) for s in inputs)
    for number, part in enumerate((live, ended)):
        if sum(len(p) for p in part):
            numbers = plan.numbers[2 * number :]
            entry, went = _write(
                place, base, inputs, part, numbers, direct_io=not plan.split_history
            )
            entries.append(entry)
            moved = went if number == 0 else moved
    place.files.sync_dir(place.directory)
    rowsets = list(base.rowsets)
    rowsets[plan.position : plan.position] = reversed(entries)
    switched = replace(base, rowsets=tuple(rowsets))
    opened = tuple(
        DiskRowSet(place.files, place.directory, entry, base.info.schema, switched)
        for entry in entries
    )
    return Built(switched, opened, tuple(inputs), moved)


def _kept(source: RewriteInput, plan: RewritePlan) -> tuple[Rows, Rows]:
    """Return the rows that are kept: those of the first new rowset, and history for the second."""
    first = np.ones(source.view.rows, np.bool_)
    rows, stamps = source.ended
    never = source.view.ins[rows] == stamps  # written again by the same transaction
    stays = (stamps > np.uint64(plan.drop_below)) & ~never
    first[rows if plan.split_history else rows[~stays]] = False
    return np.flatnonzero(first), rows[stays] if plan.split_history else rows[:0]


def _write(
    place: FileTarget,
    base: Manifest,
    inputs: Sequence[RewriteInput],
    kept: Sequence[Rows],
    numbers: Sequence[int],
    *,
    direct_io: bool,
) -> tuple[RowSetEntry, tuple[Int64s, ...]]:
    moved = tuple(
        diskrowset.write(
            place.files,
            place.directory,
            numbers[0],
            [s.view for s in inputs],
            kept,
            _columns(base, inputs),
            compression=compression_of(base.info.options),
            seed=base.index_seed,
            hash_keys=place.hash_keys,
            direct_io=direct_io,
        )
    )
    rows, stamps = _ended_after_move(inputs, moved)
    if not len(rows):
        return RowSetEntry(numbers[0]), moved
    path = f"{place.directory}/{manifest.del_name(numbers[1])}"
    end_stamps.write(place.files, path, rows, stamps)
    return RowSetEntry(numbers[0], (numbers[1],)), moved


def _columns(base: Manifest, inputs: Sequence[RewriteInput]) -> list[Column]:
    """Return the columns of new rowsets: those of the schema, and dropped ones that an input has."""
    dropped = readable(base.info.dropped, base.horizon)
    chunks = [i.view.chunks for i in inputs]
    kept = [d.column for d in dropped if not all(c.lacks(d.column.id) for c in chunks)]
    return [*base.info.schema.columns, *kept]


def _ended_after_move(
    inputs: Sequence[RewriteInput], moved: Sequence[Int64s]
) -> tuple[Rows, Stamps]:
    parts = []
    for source, to in zip(inputs, moved, strict=True):
        rows, stamps = source.ended
        kept = to[rows] >= 0
        parts.append((to[rows[kept]], stamps[kept]))
    return end_stamps.joined(parts)


def switch(place: FileTarget, store: Store, built: Built) -> None:
    """Save the manifest, then update the state in memory. Lane APPLY; durable on return.

    Args:
        place: where files are written.
        store: follows the manifest.
        built: the new files.

    Raises:
        OSError: memory is as before; which manifest a restart would find is not known, and either is
            complete.
    """
    manifest.save(place.files, place.directory, built.manifest)
    flush_stamp = np.uint64(built.manifest.cut_stamp)
    for source, to in zip(built.inputs, built.moved, strict=True):
        rows, stamps = end_stamps.joined(source.rowset.end_stamps.pending)
        after_flush = stamps > flush_stamp  # the others are in the files
        carried = to[rows[after_flush]]
        assert not len(carried) or carried.min() >= 0, "a live version was left out of a rewrite"
        if len(carried):
            assert built.rowsets, "a rewrite without rows has nothing to carry"
            built.rowsets[0].end_stamps.end(carried, stamps[after_flush])
    replaced = [s.rowset for s in built.inputs]
    store.frozen = [m for m in store.frozen if not any(m is r for r in replaced)]
    by_number = {d.entry.number: d for d in store.disks}
    by_number |= {d.entry.number: d for d in built.rowsets}
    store.disks = [by_number[e.number] for e in built.manifest.rowsets]
    store.remove_replaced()
    for disk, entry in zip(store.disks, built.manifest.rowsets, strict=True):
        disk.entry = entry
