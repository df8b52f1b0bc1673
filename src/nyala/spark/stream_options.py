"""Options of a stream, checked in the driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp
from nyala.spark.options import check_known, flag, hold_s, split, split_bytes, where

STARTING = "starting"
SPLIT_BYTES = 64 << 20
NAMES = (
    "ca", "cert", "columns", "hold_s", "key", "masters", "max_rows_per_trigger", "net", "split_bytes",
    STARTING, "table", "where",
)  # fmt: skip
EXAMPLES = "snapshot, now, a hybrid time, or a time as 2026-01-31T12:00:00+00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of one stream.

    Attributes:
        table: name of the table.
        masters: their addresses.
        snapshot: begin with the rows of a snapshot.
        since: hybrid time after which changes are read; 0: the present.
        max_rows: most rows of one batch; 0: not limited.
        net: one change per key and batch, else every version.
        columns: names; None: all.
        where: the user's expression; None: all rows.
        hold_s: seconds for which history is held after the query has ended; 0: no hold.
        split_bytes: approximate bytes of a partition of the snapshot.
    """

    table: str
    masters: str
    snapshot: bool
    since: int
    max_rows: int
    net: bool
    columns: list[str] | None
    where: str | None
    hold_s: int
    split_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamOptions":
        """Check the options of a stream.

        Args:
            options: as Spark gives them.

        Raises:
            InvalidArgument: an unknown option, or a value that it cannot have.
        """
        if "schema_evolution" in options:
            raise InvalidArgument(
                "option schema_evolution is not offered: PySpark cannot change the columns of a query that "
                "runs. Leave it out; after the table was altered, start the query again with its checkpoint"
            )
        check_known(options, NAMES, "a stream")
        table, masters = where(options)
        snapshot, since = _starting(options.get(STARTING, ""))
        limit = options.get("max_rows_per_trigger", "")
        if limit and (not limit.isdecimal() or not 0 < int(limit) < 1 << 31):
            raise InvalidArgument(
                f"option max_rows_per_trigger={limit!r}: a number of rows, from 1 to {(1 << 31) - 1}; left "
                "out: all that there are"
            )
        names = options.get("columns")
        return cls(
            table=table,
            masters=masters,
            snapshot=snapshot,
            since=since,
            max_rows=int(limit or 0),
            net=flag(options, "net", True),
            columns=split(names) if names else None,
            where=options.get("where") or None,
            hold_s=hold_s(options),
            split_bytes=split_bytes(options, SPLIT_BYTES),
        )


def _starting(text: str) -> tuple[bool, int]:
    """Return whether a stream begins with a snapshot, and otherwise after which time."""
    if text.lower() in ("snapshot", "now"):
        return text.lower() == "snapshot", 0
    if not text:
        raise InvalidArgument(
            f'a stream needs option "{STARTING}", which tells Spark its columns: {EXAMPLES}'
        )
    try:
        return False, max(
            1, as_stamp(int(text) if text.isdecimal() else datetime.fromisoformat(text))
        )
    except ValueError:
        raise InvalidArgument(f"option {STARTING}={text!r}: {EXAMPLES}") from None


def check_columns(table: str, schema: pa.Schema) -> None:
    """Refuse a table whose own columns have the names of those that a stream adds.

    Args:
        table: name of the table.
        schema: of its changes.

    Raises:
        InvalidArgument: names the column.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidArgument(
                f"table {table!r} has a column {name!r}, and a stream adds one of that name; rename it, or "
                'leave it out with option "columns"'
            )
