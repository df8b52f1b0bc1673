"""Parts of a backup: each is one scan token, whose rows any process writes to one Parquet file."""

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nyala.backup.folders import whole_file
from nyala.backup.manifest import BackupFile
from nyala.client.connection import Connection
from nyala.client.read.batch_groups import grouped
from nyala.client.scan_token import ScanToken
from nyala.common.errors import Retryable

GROUP_BYTES = 16 << 20
"""Bytes of rows, in memory, of a row group of a file; a part needs about twice as much memory."""
GROUP_ROWS = 250_000
TRIES = 5
"""Number of times that a part is begun if its server fails."""


@dataclass(frozen=True, slots=True)
class BackupPart:
    """Rows of one file.

    Attributes:
        token: serialised scan token.
        path: of the file.
        schema: serialised Arrow schema of the rows.
        dropped_at: hybrid time at which the tablet's range was dropped; 0: it was not.
    """

    token: bytes
    path: str
    schema: bytes
    dropped_at: int = 0


class HashedFile:
    """A file that is written from its beginning to its end, with the SHA-256 of its bytes.

    Args:
        file: opened for writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; return their number."""
        view = memoryview(data)
        self._hash.update(view)
        self._file.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.bytes

    def flush(self) -> None:
        """Flush the buffers of this process."""
        self._file.flush()

    def readable(self) -> bool:
        """Return False: it is only written."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: it is written in order."""
        return False

    def close(self) -> None:
        """End it; the file itself stays open."""
        self.closed = True

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far, hexadecimal."""
        return self._hash.hexdigest()


def write_own_part(part: BackupPart) -> BackupFile | None:
    """Write a part as `write_part`, to a file that has another name at each try of a task.

    Its size and checksum are those that this try returns, whatever another try of the task writes meanwhile.

    Args:
        part: what to read.
    """
    path = Path(part.path)
    own = path.with_name(f"{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    return write_part(replace(part, path=str(own)))


def write_part(part: BackupPart, connection: Connection | None = None) -> BackupFile | None:
    """Write the rows of a part to its file, durably, and return its facts; None: it has no rows, and no file.

    Args:
        part: what to read.
        connection: reads it; None: the one that this process shares for scan tokens.

    Raises:
        NyalaError: the rows cannot be read.
        OSError: the file cannot be written.
    """
    for left in reversed(range(TRIES)):
        try:
            return _write(part, ScanToken.parse(part.token, connection))
        except Retryable:
            if not left:
                raise
    return None


def _write(part: BackupPart, token: ScanToken) -> BackupFile | None:
    path, rows = Path(part.path), 0
    schema = pa.ipc.read_schema(pa.py_buffer(part.schema))
    with whole_file(path) as raw:
        file = HashedFile(raw)
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(token.to_batches(), schema):
                writer.write_table(group, row_group_size=GROUP_ROWS)
                rows += group.num_rows
    if not rows:
        path.unlink(missing_ok=True)  # another try may have removed it
        return None
    return BackupFile(path.name, token.tablet_id, rows, file.bytes, file.sha256, part.dropped_at)


def _groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Collect batches to the tables of row groups."""
    for found in grouped(batches, GROUP_ROWS, GROUP_BYTES):
        table = pa.Table.from_batches(found, schema)
        if table.num_rows:
            yield table
