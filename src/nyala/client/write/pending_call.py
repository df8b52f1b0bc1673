"""A pending write of few rows: the caller's rows and their outcome.

A caller is a coroutine or a thread, and gets exactly one outcome. Used on the client's loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable


@dataclass(slots=True)
class Written:
    """Outcome of a write: rows without an error, (row, code, message) of the others, last timestamp."""

    rows: int = 0
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    timestamp: int = 0


class Call:
    """One caller's rows, all for one operation.

    Args:
        table: the open table.
        op: a `WriteOp` of the wire.
        batch: the rows; columns by name, of the table's types.
        size_bytes: size in bytes of the batch.
        deadline_us: monotonic; after it the call fails with a time-out.
        on_done: called once on the loop, when there is an outcome.

    Attributes:
        sent: a server may have seen the rows.
        over: the call is complete, or its caller has gone.
    """

    __slots__ = ("_on_done", "batch", "deadline_us", "error", "op", "over", "result", "sent",
                 "size_bytes", "table")  # fmt: skip

    def __init__(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, size_bytes: int, deadline_us: int,
        on_done: Callable[[], None],
    ) -> None:  # fmt: skip
        self.table = table
        self.op = op
        self.batch = batch
        self.size_bytes = size_bytes
        self.deadline_us = deadline_us
        self.sent = self.over = False
        self.result = Written()
        self.error: BaseException | None = None
        self._on_done = on_done

    def done(self, result: Written) -> None:
        """Complete the call with a result."""
        if not self.over:
            self.over = True
            self.result = result
            self._on_done()

    def failed(self, error: BaseException) -> None:
        """Complete the call with an error."""
        if not self.over:
            self.over = True
            self.error = error
            self._on_done()

    def outcome(self) -> Written:
        """Return the result, or raise the error, of a call that is over."""
        if self.error is not None:
            raise self.error
        return self.result
