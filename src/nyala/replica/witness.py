"""State machine of a witness: no data, only the point up to which the log may be collected (S1.45).

The point starts where the witness joined and advances as if there were data to flush, so that the log is
collected as on any member. While a witness is to get the data it does not advance (`NodeView.keeps_log`,
S1.53), unless its log gets too long. Only this module packs or unpacks `<dir>/data/<group>/witness` (bytes:
docs).
"""

from collections.abc import Callable, Sequence
from typing import Never

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, Corrupt, InvalidArgument
from nyala.common.ids import CommittedOperation, OpId
from nyala.env.files import Files
from nyala.raft.membership import UNREADABLE
from nyala.replica.state_machine import FlushPoint

FILE_NAME = "witness"
MAGIC = b"NYALWITN"
_CRC_BYTES = 4


class Witness:
    """Satisfies `StateMachine` with no state. Any lane.

    Args:
        files: the file system.
        directory: where its file is.
        flush_point: content of its file.
    """

    def __init__(self, files: Files, directory: str, flush_point: FlushPoint) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._flush_point = flush_point

    @classmethod
    def create(cls, files: Files, directory: str, flush_point: FlushPoint) -> "Witness":
        """Make the file of a new witness; durable on return.

        Args:
            files: the file system.
            directory: directory of the witness.
            flush_point: point after which its log begins.

        Raises:
            OSError: it was not made.
        """
        files.write_atomic(f"{directory}/{FILE_NAME}", encode(flush_point))
        return cls(files, directory, flush_point)

    @classmethod
    def open(cls, files: Files, directory: str) -> "Witness | None":
        """Open the witness in a directory; None: the directory has another state machine.

        Raises:
            BadChecksum, Corrupt: its file is damaged.
        """
        path = f"{directory}/{FILE_NAME}"
        if not files.exists(path):
            return None
        flush_point = decode(files.read(path), path)
        files.sync_dir(directory)  # else a power failure could undo it after it was read
        return cls(files, directory, flush_point)

    @property
    def flush_point(self) -> FlushPoint:
        """The point up to which this replica does not need the log."""
        return self._flush_point

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        """Discard the operations; return empty results."""
        return [b""] * len(operations)

    def unflushed_bytes(self) -> int:
        """Return 0: there are no rows in memory."""
        return 0

    def prepare_flush(self, flush_point: FlushPoint) -> Callable[[], Callable[[], None]] | None:
        """Advance the point; sessions are not kept, since they are of no use without data."""

        def install() -> None:
            self._flush_point = FlushPoint(flush_point.op, flush_point.stamp)

        def build() -> Callable[[], None]:
            self._files.write_atomic(self._path, encode(flush_point))
            return install

        return build

    def checkpoint(self) -> Never:
        """Raise an error: there is no data to copy.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument("a witness has a log and no data: copy a replica that has the data")

    def close(self) -> None:
        """Do nothing: no file is open."""


def encode(flush_point: FlushPoint) -> bytes:
    """Return the bytes of a witness' file."""
    body = MAGIC + msgspec.json.encode(
        (flush_point.op.term, flush_point.op.index, flush_point.stamp)
    )
    return body + int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little")


def decode(raw: bytes, path: str) -> FlushPoint:
    """Read the bytes of a witness' file.

    Raises:
        BadChecksum: damaged. Corrupt: the checksum matches and the content is invalid.
    """
    end = len(raw) - _CRC_BYTES
    crc = int.from_bytes(raw[max(0, end) :], "little")
    if not raw.startswith(MAGIC) or end < len(MAGIC) or crc != int(google_crc32c.value(raw[:end])):
        raise BadChecksum(f"{path} is damaged; this replica has to be replaced", {"path": path})
    try:
        term, index, stamp = msgspec.json.decode(raw[len(MAGIC) : end], type=tuple[int, int, int])
    except UNREADABLE as err:
        raise Corrupt(f"{path} cannot be understood: {err}") from err
    return FlushPoint(OpId(term, index), stamp)
