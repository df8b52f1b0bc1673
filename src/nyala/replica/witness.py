"""The machine of a witness: no data, only the point in the log at which it joined (S1.45).

Its log is all that it has, so its files never stand for more than that point, and nothing of the log after
it is let go (S1.53). Only this module packs or unpacks `<dir>/data/<group>/witness` (bytes: docs).
"""

from collections.abc import Callable, Sequence

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, Corrupt
from nyala.common.ids import Operation, OpId
from nyala.env.files import Files
from nyala.raft.membership import UNREADABLE
from nyala.replica.state_machine import Cut

FILE_NAME = "witness"
MAGIC = b"NYALWITN"
_CRC_BYTES = 4


class Witness:
    """Satisfies `StateMachine` with no state. Any lane.

    Args:
        cut: the point at which the witness joined.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut

    @classmethod
    def create(cls, files: Files, directory: str, cut: Cut) -> "Witness":
        """Make the file of a new witness; durable on return."""
        files.write_atomic(f"{directory}/{FILE_NAME}", encode(cut))
        return cls(cut)

    @classmethod
    def open(cls, files: Files, directory: str) -> "Witness | None":
        """Return the witness that lives in a directory; None: another machine does.

        Raises:
            BadChecksum, Corrupt: its file cannot be believed.
        """
        path = f"{directory}/{FILE_NAME}"
        return cls(decode(files.read(path), path)) if files.exists(path) else None

    @property
    def cut(self) -> Cut:
        """The point at which the witness joined."""
        return self._cut

    def apply(self, operations: Sequence[Operation]) -> list[bytes]:
        """Keep nothing."""
        return [b""] * len(operations)

    def unflushed_bytes(self) -> int:
        """Nothing is in memory."""
        return 0

    def prepare_flush(self, cut: Cut) -> Callable[[], Callable[[], None]] | None:
        """There is nothing to write, whatever was applied."""
        del cut
        return None

    def close(self) -> None:
        """Nothing is open."""


def encode(cut: Cut) -> bytes:
    """Return the bytes of a witness' file."""
    body = MAGIC + msgspec.json.encode((cut.op.term, cut.op.index, cut.stamp))
    return body + int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little")


def decode(raw: bytes, path: str) -> Cut:
    """Read the bytes of a witness' file.

    Raises:
        BadChecksum: damaged. Corrupt: the checksum holds and the content makes no sense.
    """
    end = len(raw) - _CRC_BYTES
    crc = int.from_bytes(raw[max(0, end) :], "little")
    if not raw.startswith(MAGIC) or end < len(MAGIC) or crc != int(google_crc32c.value(raw[:end])):
        raise BadChecksum(f"{path} is damaged; this replica has to be replaced", {"path": path})
    try:
        term, index, stamp = msgspec.json.decode(raw[len(MAGIC) : end], type=tuple[int, int, int])
    except UNREADABLE as err:
        raise Corrupt(f"{path} cannot be understood: {err}") from err
    return Cut(OpId(term, index), stamp)
