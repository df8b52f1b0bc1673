"""Results of deletes and updates by predicate."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nyala.common.errors import OutcomeUnknown
from nyala.common.texts.counted import counted


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The outcome of `Table.delete_where` or `Table.update_where`.

    Attributes:
        matched: rows that the predicate selected at the snapshot, as far as the call came.
        changed: those that were deleted or updated.
        missing: those that others had deleted since the snapshot; they are left as they are.
        failed: those with another row error.
        errors: the first row errors: the key columns, and the code and message of the error.
        at: hybrid time of the snapshot.
        timestamp: hybrid time of the last write; 0: there was none.
        after: position up to which all is done, for `after=` of a call that continues; empty: none yet.
        stopped: the call ended early, because its `stop` event was set.
    """

    matched: int
    changed: int
    missing: int
    failed: int
    errors: pa.Table
    at: int
    timestamp: int
    after: str
    stopped: bool = False

    def __repr__(self) -> str:
        more = f", {self.missing} deleted by others before" if self.missing else ""
        more += f", {self.failed} WITH ERRORS, in .errors" if self.failed else ""
        end = "; STOPPED, continue with at= and after=" if self.stopped else ""
        rows = f"{self.changed:,} of {counted(self.matched, 'row')}{more}"
        return f"<nyala.ChangeResult: {rows}, selected at {self.at}{end}>"


class PartlyChanged(OutcomeUnknown):
    """Error of a delete or update by predicate that ended early, with the reason in `__cause__`.

    Attributes:
        result: how far it came.
    """

    code = "PARTLY_CHANGED"

    def __init__(
        self,
        message: str,
        details: Mapping[str, str] | None = None,
        *,
        result: ChangeResult | None = None,
    ) -> None:
        super().__init__(message, details)
        self.result = result or ChangeResult(
            0,
            0,
            0,
            0,
            pa.table({}),
            int(self.details.get("at", "0")),
            0,
            self.details.get("after", ""),
        )
