"""Change of a tablet's schema: a pure function of (current definition, operation). Lane APPLY.

Only the definition changes; no row is modified. Existing versions keep the columns they were written with
and are read by column id: a column that they lack has its read default. A dropped column is kept with the
time of its drop, for reads at earlier times; rewrites keep its values as long as such a time can be read.
A later entry of the log refers to this schema, whichever one it was made for: values of a dropped column are
ignored; a column that the entry does not know is absent from it, so a new row takes the *current* default,
as from any client that omits the column, and an old row keeps its value.
"""

from dataclasses import replace

from nyala.common.alteration import check_successor
from nyala.common.errors import InvalidArgument
from nyala.common.schema import Schema
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.columns import compression_of
from nyala.tablet.files.dropped_columns import dropped_by
from nyala.tablet.files.manifest import MAX_RANGES, TabletInfo
from nyala.tablet.files.replicated_ops import RowError
from nyala.tablet.write.store import Store


def apply_schema(store: Store, payload: bytes, stamp: int) -> bytes:
    """Apply one replicated schema operation.

    Args:
        store: the tablet's versions, and what it is.
        payload: as `replicated_ops.encode_schema` made it.
        stamp: timestamp of its entry.

    Returns:
        A result (`replicated_ops.decode_result`) with count 1 if it took effect; 0 if this version or a
        later one is known; 0 with one error if no such schema can follow, which changes nothing.

    Raises:
        Corrupt: the payload does not decode; nothing was changed.
    """
    op = replicated_ops.decode_schema(payload)
    if op.schema.version <= store.schema.version:
        return replicated_ops.encode_result(0, ())
    try:
        check_successor(store.schema, op.schema)
        compression_of(op.options)
    except InvalidArgument as err:
        return replicated_ops.encode_result(0, (RowError(0, "invalid_argument", err.message),))
    info = replace(store.info, schema=op.schema, table_name=op.table_name, options=op.options)
    dropped = (*info.dropped, *dropped_by(store.schema, op.schema, stamp))
    info = replace(info, ranges=_ranges(info, op.ranges_version, stamp), dropped=dropped)
    if _seen(op.schema) != _seen(store.schema):
        info = replace(info, columns_from=stamp)
    if op.retire and not info.retired_at:
        info = replace(info, retired_at=stamp)
        store.live = 0
    store.alter(info)
    return replicated_ops.encode_result(1, ())


def _seen(schema: Schema) -> list[tuple[int, str, bool]]:
    """Return what reads see of the columns besides their types, which never change."""
    return [(c.id, c.name, c.nullable) for c in schema.columns]


def _ranges(info: TabletInfo, version: int, stamp: int) -> tuple[tuple[int, int], ...]:
    """Return the changes of ranges that a tablet has followed, with one more if `version` is new to it."""
    if version <= max((v for v, _ in info.ranges), default=0):
        return info.ranges
    ranges = (*info.ranges, (version, stamp))
    if len(ranges) <= MAX_RANGES:
        return ranges
    (_, first), (second, _), *others = ranges[-MAX_RANGES - 1 :]
    return ((second, first), *others)
