"""An immutable view of a tablet: what scans, look-ups and change feeds read, without copying.

Take it anywhere with `tablet.view()`; read it in lane COMPUTE. Contract: every time passed in is one
at or below which no further operation can be applied (a safe time).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from nyala.common.errors import HistoryGone, InvalidArgument
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.expressions.predicate import Predicate
from nyala.common.ids import ColumnId
from nyala.common.schema import Column
from nyala.tablet.files.dropped_columns import with_read_default
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.read import changes as feed
from nyala.tablet.read import lookup, scan, split_points
from nyala.tablet.read import ordered as by_key
from nyala.tablet.read.emit import emit
from nyala.tablet.read.point_lookup import few as found_few
from nyala.tablet.rows.rowset import HashKeys, RowSetView
from nyala.tablet.rows.selection import EVERY_KEY, ScanFilter

BATCH_ROWS = 65_536
BATCH_BYTES = 1 << 20


class View:
    """Immutable state of a tablet that a scan reads.

    Attributes:
        info: definition of the tablet.
        schema: schema of the table; in a view that `at_time` made, with columns that were dropped since.
        horizon: the earliest time that can be read.
        check: raises Corrupt if a mapped file could not be read; to be called before a result derived from a
            batch is returned.
    """

    def __init__(
        self,
        info: TabletInfo,
        horizon: int,
        rowsets: tuple[RowSetView, ...],
        *,
        seed: int,
        hash_keys: HashKeys,
        check: Callable[[], None],
        retired: Collection[ColumnId] = (),
    ) -> None:
        self.info = info
        self._retired = retired
        self.schema = info.schema
        self.horizon = horizon
        self._rowsets = rowsets
        self._seed = seed
        self._hash_keys = hash_keys
        self.check = check

    @property
    def rowsets(self) -> tuple[RowSetView, ...]:
        """Rowsets with rows, oldest first; memory rowsets last."""
        return self._rowsets

    def at_time(self, at: int, columns: Sequence[Column] = ()) -> "View":
        """Return this view with the columns that were dropped after a time, besides those of now.

        Args:
            at: hybrid time of a read, or the end of a change feed.
            columns: columns that the table had at that time. Those that this tablet never had, because it
                went from an older schema to a newer one at once, or was created later, are added as they are.

        Raises:
            HistoryGone: the time is below the horizon: values may have been removed.
        """
        _check_time(at, self.horizon)
        past = [d.column for d in self.info.dropped if d.stamp > at]
        known = {*self.info.schema.by_id, *self._retired}
        past += [
            with_read_default(c)
            for c in columns
            if c.id not in known and c.id < self.info.schema.next_column_id
        ]
        made = View(
            self.info, self.horizon, self._rowsets, seed=self._seed, hash_keys=self._hash_keys,
            check=self.check, retired=self._retired,
        )  # fmt: skip
        made.schema = replace(self.info.schema, columns=(*self.info.schema.columns, *past))
        return made

    def scan(
        self,
        at: int,
        columns: Sequence[ColumnId] | None = None,
        where: Predicate | None = None,
        *,
        ordered: bool = False,
        limit: int | None = None,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        within: KeyBounds = EVERY_KEY,
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows visible at a time.

        Args:
            at: hybrid time.
            columns: ids, in the order of the result; None: all. With an empty list batches have no columns.
            where: predicate; None: all rows.
            ordered: by primary key; otherwise in storage order.
            limit: maximum rows; None: all.
            batch_rows: maximum rows of a batch.
            batch_bytes: maximum bytes of a batch with more than one row.
            within: range of encoded keys.

        Raises:
            HistoryGone: `at` is below the horizon (at once, not from the iterator).
            InvalidArgument: no such column.
            Corrupt: a file is damaged (from the iterator).
        """
        rowsets, wanted = self._at(at), ScanFilter(at, where, within)
        chosen = _columns(self, columns)
        if ordered:
            found = by_key.scan_ordered(rowsets, self.schema, wanted, chosen, limit)
        else:
            found = scan.scan(rowsets, self.schema, wanted, chosen)
        return emit(found, batch_rows=batch_rows, batch_bytes=batch_bytes, limit=limit)

    def count(self, at: int, where: Predicate | None = None, within: KeyBounds = EVERY_KEY) -> int:
        """Return the number of rows visible at a time; no column is read without `where`.

        Args:
            at: hybrid time of the read.
            where: predicate; None: every row.
            within: key bounds.
        """
        found = scan.count(self._at(at), self.schema, ScanFilter(at, where, within))
        self.check()
        return found

    def get(
        self, at: int, keys: pa.RecordBatch, columns: Sequence[ColumnId] | None = None
    ) -> pa.RecordBatch:
        """Return the rows with some keys, in the order of `keys`.

        Args:
            at: hybrid time.
            keys: the key columns by name, of their stored types; a key may occur again.
            columns: ids, in the order wanted; None: all.

        Returns:
            The columns, and int64 `_row`: the position of the key in `keys`. Absent keys are left out.

        Raises as `scan`; InvalidArgument also when `keys` are not the key columns.
        """
        found = lookup.get(
            self._at(at), self.schema, at, keys, _columns(self, columns),
            seed=self._seed, hash_keys=self._hash_keys,
        )  # fmt: skip
        self.check()
        return found

    def few(
        self, at: int, keys: Sequence[bytes], columns: Sequence[ColumnId]
    ) -> list[list[Any] | None]:
        """As `get`, for a few encoded keys: the row of each as `plain_rows.plain_value`s, or None.

        Args:
            at: hybrid time of the read.
            keys: encoded keys.
            columns: wanted, in this order.

        Raises:
            As `get`.
        """
        rowsets, chosen = self._at(at), _columns(self, columns)
        found = found_few(rowsets, at, keys, chosen, seed=self._seed, hash_keys=self._hash_keys)
        self.check()
        return found

    def changes(
        self,
        since: int,
        until: int,
        *,
        net: bool = True,
        where: Predicate | None = None,
        columns: Sequence[ColumnId] | None = None,
        before: bool = False,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Return the changes in (since, until], in order of (_timestamp, key).

        Args:
            since: hybrid time, exclusive.
            until: hybrid time, inclusive.
            net: one change per key, from its row at `since` to that at `until`; else every version.
            where: predicate; the changes are those of the table of matching rows. None: all rows.
            columns: as for `scan`.
            before: add `_before`, the row before each change, as a struct of the columns.
            batch_rows: as for `scan`.
            batch_bytes: as for `scan`.

        Returns:
            The columns, then `_op` ("insert", "update", "delete") and int64 `_timestamp`. A delete
            carries the key columns; the others are null.

        Raises as `scan`; HistoryGone when `since` is below the horizon.
        """
        _check_time(since, self.horizon)
        chosen = _columns(self, columns)

        def rows() -> Iterator[pa.RecordBatch]:
            found = feed.touched(
                self._rowsets, since, until, seed=self._seed, hash_keys=self._hash_keys,
                retired_at=self.info.retired_at,
            )  # fmt: skip
            changed = feed.net(found, since) if net else feed.by_version(found, since)
            yield from feed.read(self._rowsets, self.schema, changed, chosen, where, before=before)

        return emit(rows(), batch_rows=batch_rows, batch_bytes=batch_bytes)

    def changes_end(self, since: int, until: int, limit: int) -> int:
        """Return the end of a part of (since, until] with about `limit` versions.

        Args:
            since: hybrid time, exclusive.
            until: hybrid time, inclusive.
            limit: most versions that begin or end in the part, unless all of them do so at one time.

        Raises:
            HistoryGone: `since` is below the horizon.
        """
        _check_time(since, self.horizon)
        return feed.end_of(self._rowsets, since, until, limit, retired_at=self.info.retired_at)

    def _at(self, at: int) -> tuple[RowSetView, ...]:
        """Return the rowsets that may have rows at a time: none, once the tablet is retired.

        Raises:
            HistoryGone: the time is below the horizon.
        """
        _check_time(at, self.horizon)
        return () if 0 < self.info.retired_at <= at else self._rowsets


def split_keys(
    view: View, wanted: ScanFilter, columns: Sequence[ColumnId] | None, split_bytes: int
) -> list[bytes]:
    """Return the keys at which to split a scan into pieces of about `split_bytes`; see `split_points`.

    Any time is valid, also below the horizon, because the result is keys, not rows.

    Args:
        view: a consistent state of the tablet.
        wanted: time, predicate and keys.
        columns: wanted, in this order.
        split_bytes: approximate bytes of one piece.
    """
    chosen = _columns(view, columns)
    found = split_points.split_keys(view._rowsets, view.schema, wanted, chosen, split_bytes)
    view.check()
    return found


def _columns(view: View, ids: Sequence[ColumnId] | None) -> list[Column]:
    """Return the columns with these ids; None: all of now."""
    if ids is None:
        return list(view.info.schema.columns)
    schema = view.schema
    unknown = [i for i in ids if i not in schema.by_id]
    if unknown or len(set(ids)) < len(ids):
        raise InvalidArgument(
            f"column ids {list(ids)}: {unknown} are not in schema version {schema.version}, or one "
            "is named twice"
        )
    return [schema.by_id[i] for i in ids]


def _check_time(at: int, horizon: int) -> None:
    if at < horizon:
        raise HistoryGone(
            f"the time {at} lies below {horizon}, before which history is not kept; read at a "
            "later time, or raise the table's history_max_age_s before the history goes",
            {"horizon": str(horizon)},
        )
