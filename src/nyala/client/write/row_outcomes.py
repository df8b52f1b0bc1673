"""Outcome of each row of a write: row errors for the result, and the error of a write that ended early.

The row errors of all answers are collected in `Outcomes.written`, also if every request is acknowledged.
Outcomes of all rows of a long stream would not fit into memory: windows whose rows are all acknowledged are
dropped, and only their number of rows is kept.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.client.results import PartlyWritten, errors_table
from nyala.client.write.pending_call import Written
from nyala.common.errors import NyalaError, has_no_effect
from nyala.common.texts.counted import counted
from nyala.wire.proto import nyala_pb2 as pb

NOT_SENT, UNKNOWN, ACKNOWLEDGED = 0, 1, 2
"""States of a row. ACKNOWLEDGED: it took effect, or it has a row error."""

VOIDED = "voided"
"""Code of a row without effect because another row of its request failed, with `all_or_nothing`."""

Rows = npt.NDArray[np.int64]
"""Positions of rows in the write."""
RowErrors = list[tuple[int, str, str]]
"""(row, code, message)."""


class Window:
    """Rows that were grouped together, and the state of each.

    Args:
        first: position of the first one in the write.
        rows: number of rows.
    """

    def __init__(self, first: int, rows: int) -> None:
        self.first = first
        self.state = np.full(rows, NOT_SENT, np.uint8)

    def rows_in(self, *states: int) -> Rows:
        """Return the rows in one of some states, in order."""
        return np.flatnonzero(np.isin(self.state, states)) + self.first


class Outcomes:
    """The rows of one write.

    Attributes:
        rows: number of rows in windows, acknowledged or not.
        requests: number of requests sent.
        written: acknowledged rows and row errors.
    """

    def __init__(self) -> None:
        self.rows = self.requests = 0
        self.written = Written()
        self._reached = 0  # end of the last acknowledged window
        self._incomplete: list[Window] = []  # ended windows with other rows

    def window(self, rows: int, errors: RowErrors, *, void: bool) -> Window:
        """Begin a window.

        Args:
            rows: number of rows; they follow those of the previous window.
            errors: errors of rows without a tablet.
            void: no row of the window is sent because of these errors.
        """
        made = Window(self.rows, rows)
        self.rows += rows
        every = np.arange(made.first, self.rows, dtype=np.int64)
        self.refused(made, with_voided(every, errors) if void else errors)
        return made

    def refused(self, window: Window, errors: RowErrors) -> None:
        """Note row errors of rows of a window that are not sent."""
        self.written.errors += errors
        for row, _, _ in errors:
            window.state[row - window.first] = ACKNOWLEDGED

    def sent(self, window: Window, rows: Rows) -> None:
        """Note that rows of a window were sent as one request."""
        self.requests += 1
        window.state[rows - window.first] = UNKNOWN

    def failed(self, window: Window, rows: Rows, error: NyalaError) -> None:
        """Note that a request failed.

        Args:
            window: the request's rows belong to it.
            rows: positions in the write.
            error: why the request failed.
        """
        if has_no_effect(error):
            window.state[rows - window.first] = NOT_SENT

    def acknowledged(
        self, window: Window, rows: Rows, result: pb.WriteResult, *, whole: bool = False
    ) -> None:
        """Note that a request was answered.

        Args:
            window: the request's rows belong to it.
            rows: positions in the write.
            result: answer of the tablet.
            whole: a row error has voided the others.
        """
        window.state[rows - window.first] = ACKNOWLEDGED
        errors = [(int(rows[e.row]), e.code, e.message) for e in result.row_errors]
        total = self.written
        total.rows += result.rows
        total.timestamp = max(total.timestamp, result.timestamp)
        total.errors += with_voided(rows, errors) if whole and errors else errors

    def close_window(self, window: Window) -> None:
        """Note that a window has ended: no more of its rows are sent."""
        if (window.state == ACKNOWLEDGED).all():
            self._reached = max(self._reached, window.first + len(window.state))
        else:
            self._incomplete.append(window)

    def error(self, cause: BaseException) -> BaseException:
        """Return the error when all windows have ended; the cause itself if it says all about the rows."""
        done, unknown = self.written, self._rows_in(UNKNOWN)
        of_request = self.requests == 1 and isinstance(cause, NyalaError)  # else it is an interrupt
        if not done.timestamp and (not len(unknown) or of_request):
            return cause
        sent = [
            w.first + int(np.flatnonzero(w.state)[-1]) + 1
            for w in self._incomplete
            if w.state.any()
        ]
        next_row = max([self._reached, *sent])
        not_sent = self._rows_in(NOT_SENT)
        not_written = not_sent[not_sent < next_row]
        done.errors.sort()
        why = cause.message if isinstance(cause, NyalaError) else f"{type(cause).__name__}: {cause}"
        written = counted(done.rows, "row is written", "rows are written")
        error = PartlyWritten(
            f"{written}, then: {why}. Of the rows before row {next_row}, {len(unknown)} "
            f"may or may not have taken effect (.unknown), {len(not_written)} had none (.not_written), "
            f"{len(done.errors)} have row errors (.errors); nothing was sent from row {next_row} on",
            rows=done.rows,
            errors=errors_table(done.errors),
            timestamp=done.timestamp,
            next_row=next_row,
            unknown=pa.array(unknown, pa.int64()),
            not_written=pa.array(not_written, pa.int64()),
        )
        error.__cause__ = cause
        return error

    def _rows_in(self, *states: int) -> Rows:
        found = [w.rows_in(*states) for w in sorted(self._incomplete, key=lambda w: w.first)]
        return np.concatenate([np.empty(0, np.int64), *found])


def with_voided(rows: Rows, errors: RowErrors) -> RowErrors:
    """Return the errors of a request whose failing rows void the others, one for each row.

    Args:
        rows: those of the request.
        errors: of the failing rows.
    """
    first, code, why = min(errors)
    told = f"no effect, because row {first} of the same request failed ({code}: {why}); with all_or_nothing"
    failing = {row for row, _, _ in errors}
    return errors + [(int(row), VOIDED, told) for row in rows if row not in failing]
