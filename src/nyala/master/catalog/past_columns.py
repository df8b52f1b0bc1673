"""The columns of a table at earlier times: what each alteration changed, in the table's record. Pure.

An alteration takes effect for reads at a time that the leader master chooses when it plans it: above the
times that tablet servers have reported, and above what its client has seen. Every tablet stamps the
alteration above that time (`AlterTabletRequest.above`), so that no tablet has dropped a column at a time at
which the table has it.
"""

from nyala.common.errors import HistoryGone
from nyala.common.hybrid_time import from_micros
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

MAX_PAST = 256
"""Maximum number of alterations of columns that are kept; beyond it the oldest are removed."""
LONGEST_HOLD_S = 7 * 86_400
"""Seconds for which columns are kept beyond the table's history: the longest time to live of a hold."""


def note(
    record: cat.TableRecord, before: pb.Schema, time: int, *, history_s: int, max_bytes: int
) -> None:
    """Note in a table's record what an alteration changes of its columns, and remove notes beyond the bounds.

    Nothing is noted if reads see no change.

    Args:
        record: record with the new definition; changed in place.
        before: schema before the alteration.
        time: hybrid time from which it is to take effect; it does so later than the one before.
        history_s: history of the table in seconds; older notes are removed.
        max_bytes: maximum size of the record; notes take at most a quarter of it, the newest ones. 0: any.
    """
    made = _difference(before, record.spec.schema)
    if made is not None:
        made.until = max(time, last_time(record) + 1)
        record.past.append(made)
    if not record.past:
        return
    oldest = record.past[-1].until - from_micros((history_s + LONGEST_HOLD_S) * 1_000_000)
    size = sum(note.ByteSize() for note in record.past)
    most = min(max_bytes // 4, max_bytes - (record.ByteSize() - size)) if max_bytes else size
    removed = 0
    for noted in record.past:
        left = len(record.past) - removed
        if noted.until > oldest and left <= MAX_PAST and size <= most:
            break
        record.past_from = noted.until
        size -= noted.ByteSize()
        removed += 1
    del record.past[:removed]


def last_time(record: cat.TableRecord) -> int:
    """Return the hybrid time from which a table has its present columns, for reads; 0: always."""
    return max(record.past_from, record.past[-1].until if record.past else 0)


def schema_at(record: cat.TableRecord, at: int) -> tuple[pb.Schema, int]:
    """Return the schema that a table had at a time; its defaults and comments are those of now.

    Also the time from which the table has other columns, 0 if it has these now.

    Args:
        record: record of the table.
        at: hybrid time.

    Raises:
        HistoryGone: the columns of that time are not kept any more.
    """
    if at < record.past_from:
        raise HistoryGone(
            f"the time {at} lies below {record.past_from}, before which the columns of table "
            f"{record.spec.name!r} are not kept; read at a later time",
            {"horizon": str(record.past_from)},
        )
    schema = pb.Schema()
    schema.CopyFrom(record.spec.schema)
    until = 0
    for noted in reversed(record.past):
        if at >= noted.until:
            break
        _undo(schema, noted)
        until = noted.until
    return schema, until


def _difference(before: pb.Schema, after: pb.Schema) -> cat.PastColumns | None:
    """Return what an alteration changed of the columns that reads see; None: nothing."""
    kept = {c.id: c for c in after.columns}
    made = cat.PastColumns(version=before.version)
    for place, column in enumerate(before.columns):
        now = kept.pop(column.id, None)
        if now is None:
            made.columns.append(column)
            made.places.append(place)
        elif (now.name, now.nullable) != (column.name, column.nullable):
            made.columns.append(column)
    made.added.extend(kept)
    return made if made.columns or made.added else None


def _undo(schema: pb.Schema, noted: cat.PastColumns) -> None:
    """Change a schema into the one before an alteration."""
    old = {c.id: c for c in noted.columns}
    columns = [old.pop(c.id, c) for c in schema.columns if c.id not in noted.added]
    for place, column in zip(noted.places, old.values(), strict=True):
        columns.insert(place, column)
    made = [pb.Column.FromString(c.SerializeToString()) for c in columns]
    del schema.columns[:]
    schema.columns.extend(made)
    schema.version = noted.version
