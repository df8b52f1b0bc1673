"""Records of tables that are larger than a cell of the sys catalog: in several rows.

The row of the table then says how many parts there are, and each part is a row of its own. All of them are
written in one batch, so that they belong together at every time. Parts that a smaller record has left over
stay, and are not read.
"""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from nyala.common.errors import Corrupt
from nyala.master.catalog.records.rows import KIND_TABLE, CatalogRow
from nyala.wire.proto import catalog_pb2 as cat

KIND_PART = "table_part"
PART_BYTES = 64 << 10
"""Maximum bytes of a part: those of a cell."""
_HEAD_BYTES = 128
"""More bytes than the row of a table has whose record is in parts."""


def split(rows: Sequence[CatalogRow]) -> list[CatalogRow]:
    """Return rows of which none is larger than a cell; the inverse of `join`."""
    made: list[CatalogRow] = []
    for row in rows:
        if row.kind != KIND_TABLE or len(row.body) <= PART_BYTES:
            made.append(row)
            continue
        pieces = [row.body[at : at + PART_BYTES] for at in range(0, len(row.body), PART_BYTES)]
        head = cat.TableRecord(id=row.id, state=cat.TABLE_IN_PARTS, parts=len(pieces))
        made.append(CatalogRow(KIND_TABLE, row.id, head.SerializeToString(deterministic=True)))
        made += [CatalogRow(KIND_PART, _part(row.id, n), p) for n, p in enumerate(pieces)]
    return made


def join(rows: Sequence[CatalogRow]) -> list[CatalogRow]:
    """Return rows with each record as one, in their order, as they were before `split`.

    Raises:
        Corrupt: a part is missing.
    """
    pieces = {row.id: row.body for row in rows if row.kind == KIND_PART}
    return list(_joined(rows, pieces)) if pieces else list(rows)


def _joined(rows: Sequence[CatalogRow], pieces: dict[str, bytes]) -> Iterator[CatalogRow]:
    for row in rows:
        if row.kind == KIND_PART:
            continue
        count = _parts(row) if row.kind == KIND_TABLE else 0
        if not count:
            yield row
            continue
        found = [pieces.get(_part(row.id, n)) for n in range(count)]
        whole = [piece for piece in found if piece is not None]
        if len(whole) < count:
            raise Corrupt(
                f"the catalog row {row.kind}/{row.id} has {count} parts, and part {found.index(None)} "
                "is missing"
            )
        yield CatalogRow(row.kind, row.id, b"".join(whole))


def _parts(row: CatalogRow) -> int:
    """Return the number of parts of a table's record; 0: it is in its row."""
    if len(row.body) > _HEAD_BYTES:
        return 0
    try:
        head = cat.TableRecord.FromString(row.body)
    except DecodeError:
        return 0  # reported when the record is parsed
    return head.parts if head.state == cat.TABLE_IN_PARTS else 0


def _part(table: str, number: int) -> str:
    return f"{table}/{number}"
