"""Results of writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from nyala.common.errors import OutcomeUnknown, Rejected
from nyala.common.texts.counted import counted

ERRORS = pa.schema([("row", pa.int64()), ("code", pa.string()), ("message", pa.string())])
SHOWN = 5


class RowErrors(Rejected):
    """Error of a write of which some rows had no effect; the others took effect.

    Attributes:
        errors: the table of `WriteResult`.
    """

    code = "ROW_ERRORS"

    def __init__(
        self,
        message: str,
        details: Mapping[str, str] | None = None,
        *,
        errors: pa.Table | None = None,
    ) -> None:
        super().__init__(message, details)
        self.errors = _no_errors() if errors is None else errors


class PartlyWritten(OutcomeUnknown):
    """Error of a write of many rows that ended early, with the reason in `__cause__` and in the message.

    Rows are counted from 0 over all data that the call was given. Every row below `next_row` that is in none
    of `errors`, `unknown` and `not_written` is written; nothing of a row from `next_row` on was sent.

    Attributes:
        rows: rows that are written.
        errors: row errors so far: the table of `WriteResult`.
        timestamp: hybrid time of the last batch that was acknowledged; 0: none was.
        next_row: first row from which on nothing was sent.
        unknown: rows below it that were sent and not answered: they may have taken effect, or may still.
        not_written: rows below it that had no effect.
    """

    code = "PARTLY_WRITTEN"

    def __init__(
        self,
        message: str,
        details: Mapping[str, str] | None = None,
        *,
        rows: int = 0,
        errors: pa.Table | None = None,
        timestamp: int = 0,
        next_row: int = 0,
        unknown: pa.Array | None = None,
        not_written: pa.Array | None = None,
    ) -> None:
        super().__init__(message, details)
        self.rows = rows
        self.errors = _no_errors() if errors is None else errors
        self.timestamp = timestamp
        self.next_row = next_row
        self.unknown = pa.array([], pa.int64()) if unknown is None else unknown
        self.not_written = pa.array([], pa.int64()) if not_written is None else not_written


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of an acknowledged write.

    Attributes:
        rows: rows without an error.
        errors: one line per row without effect: row (position in the data given), code, message. With
            `all_or_nothing` the other rows of the request of a failing row have the code `voided`.
        timestamp: hybrid time of the write; a scan at or above it sees it.
        stopped: the call ended before `next_row`, because its `stop` event was set.
    """

    rows: int
    errors: pa.Table
    timestamp: int
    stopped: bool = False

    @property
    def next_row(self) -> int:
        """First row of the data that was not read: the number of rows if the call was not stopped."""
        return self.rows + int(self.errors.num_rows)

    def __repr__(self) -> str:
        if not self.errors.num_rows:
            end = f", STOPPED before row {self.next_row}" if self.stopped else ""
            return f"<nyala.WriteResult: {counted(self.rows, 'row')}, at {self.timestamp}{end}>"
        first = self.errors.slice(0, 1).to_pylist()[0]
        return (
            f"<nyala.WriteResult: {counted(self.rows, 'row')}, and {self.errors.num_rows:,} WITHOUT EFFECT: "
            f"row {first['row']}: {first['message']}; all in .errors, raise_for_errors() raises>"
        )

    def raise_for_errors(self) -> "WriteResult":
        """Return this result if every row took effect.

        Raises:
            RowErrors: with the first few row errors in words, and all of them as a table.
        """
        if not self.errors.num_rows:
            return self
        first = self.errors.slice(0, SHOWN).to_pylist()
        words = "; ".join(f"row {e['row']}: {e['code']} ({e['message']})" for e in first)
        more = self.errors.num_rows - len(first)
        every = counted(self.rows + self.errors.num_rows, "row")
        raise RowErrors(
            f"{self.errors.num_rows:,} of {every} had no effect: {words}"
            + (f"; and {more} more in .errors" if more > 0 else ""),
            errors=self.errors,
        )


@cache
def _no_errors() -> pa.Table:  # made when first needed: pyarrow's first table loads pandas
    return ERRORS.empty_table()


def errors_table(errors: list[tuple[int, str, str]]) -> pa.Table:
    """Return row errors as a table."""
    if not errors:
        return _no_errors()
    columns = list(zip(*errors, strict=True))
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, ERRORS, strict=True)], schema=ERRORS
    )
