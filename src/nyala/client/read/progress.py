"""Progress of a scan token, and the token for the rest of its rows.

An ordered scan goes on after the last key delivered, at the snapshot that its first server chose. One
without order has no place to go on from: which rows were delivered cannot be said to another replica.
"""

from collections.abc import Callable

import pyarrow as pa

from nyala.client.read.ordered_merge import last_key_of
from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.wire.proto import nyala_pb2 as pb

Heard = Callable[[pb.ScanHeader], None]
"""Told what a server says of a token's answer, before its rows: the time read at, and its age."""


class ScanProgress:
    """One run of a token.

    Args:
        token: what to read.
        heard: told what each server says before its rows.

    Attributes:
        token: what is still to be read, as of the last `go_on_from_here`.
        delivered: rows so far.
    """

    def __init__(self, token: pb.ScanToken, heard: Heard | None) -> None:
        self.token = token
        self.delivered = 0
        self._limit = token.limit
        self._heard = heard
        self._header = pb.ScanHeader()
        self._last: pa.RecordBatch | None = None

    def goes_to(self, tablet: TabletId) -> None:
        """Read another tablet, which took the key range of the token's.

        Raises:
            Unavailable: rows of the old one were delivered, and what was still to come is gone.
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

    def began(self, header: pb.ScanHeader) -> None:
        """Take what a server says of the rows that follow."""
        self._header = header
        if self._heard is not None:
            self._heard(header)

    def took(self, batch: pa.RecordBatch) -> None:
        """Note rows that are delivered."""
        self.delivered += batch.num_rows
        self._last = batch

    def go_on_from_here(self, why: str) -> bool:
        """Let `token` ask for the rows after those delivered; return whether there are none.

        Args:
            why: the stream broke.

        Raises:
            Unavailable: nothing says which rows are still to come.
        """
        last, names = self._last, list(self._header.key_columns)
        if last is None or not names or any(n not in last.schema.names for n in names):
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
