"""Progress of a scan token, and the token for its remaining rows.

An ordered scan resumes after the last key delivered, at the same snapshot. A change feed has the same order
at every replica, so that the rows delivered are skipped. An unordered scan cannot resume at another replica,
which may return rows in another order.
"""

from collections.abc import Callable

import pyarrow as pa

from nyala.client.read.ordered_merge import last_key_of
from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.wire.proto import nyala_pb2 as pb

OnHeader = Callable[[pb.ScanHeader], None]
"""Called with the header of a server's response, before its rows: the time of the read, and its age."""


class ScanProgress:
    """One run of a token.

    Args:
        token: token of the scan.
        on_header: called with the header of each response.
        repeated: the caller begins again if the scan cannot be resumed.

    Attributes:
        token: for the remaining rows, as of the last `resume`.
        delivered: number of rows so far.
    """

    def __init__(
        self, token: pb.ScanToken, on_header: OnHeader | None, *, repeated: bool = False
    ) -> None:
        self.token = token
        self._repeated = repeated
        self.delivered = 0
        self._limit = token.limit
        self._skip = 0
        self._on_header = on_header
        self._header = pb.ScanHeader()
        self._last: pa.RecordBatch | None = None

    def move_to(self, tablet: TabletId) -> None:
        """Continue with the tablet that replaced the token's.

        Raises:
            Unavailable: rows of the old tablet were delivered, and the others are lost.
        """
        old = self.token.tablet_id
        if tablet == old:
            return
        if self.delivered:
            raise Unavailable(
                f"tablet {old} was replaced by {tablet} after {self.delivered} rows were read of it; run the "
                "scan again"
            )
        self.token = _copy(self.token)
        self.token.tablet_id = tablet

    def set_header(self, header: pb.ScanHeader) -> None:
        """Store the header of a response, whose rows follow."""
        self._header = header
        self._skip = self.delivered if self.token.changes else 0
        if self._on_header is not None:
            self._on_header(header)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a response that were not delivered before, and count them."""
        again = min(self._skip, batch.num_rows)
        self._skip -= again
        batch = batch.slice(again)
        self.delivered += batch.num_rows
        self._last = batch
        return batch

    @property
    def can_leave(self) -> bool:
        """True if another replica can go on with the scan, or its caller begins again."""
        return self._repeated or not self.delivered or self.token.changes or bool(self._key())

    def _key(self) -> list[str]:
        """Return the names of the columns by which the rows are ordered; empty: they are not."""
        names = list(self._header.key_columns)
        columns = () if self._last is None else self._last.schema.names
        return names if all(n in columns for n in names) else []

    def resume(self, why: str) -> bool:
        """Make `token` ask for the rows after those delivered; return whether there are none.

        Args:
            why: the error of the stream.

        Raises:
            Unavailable: the scan is not ordered, so the remaining rows are not known.
        """
        if self.token.changes:
            self.token = _copy(self.token)
            self.token.at, self.token.limit = self._header.through or self._header.at, 0
            return False
        last, names = self._last, self._key()
        if last is None or not names:
            raise Unavailable(
                f"the scan of tablet {self.token.tablet_id} broke after {self.delivered} rows ({why}); "
                "run it again, or use to_arrow(), which starts over by itself"
            )
        if self._limit and self.delivered >= self._limit:
            return True
        rest = _copy(self.token)
        rest.mode, rest.at = pb.SNAPSHOT, self._header.at
        rest.limit = self._limit - self.delivered if self._limit else 0
        rest.resume_after = last_key_of(names, last)
        self.token = rest
        return False


def _copy(token: pb.ScanToken) -> pb.ScanToken:
    copy = pb.ScanToken()
    copy.CopyFrom(token)
    return copy
