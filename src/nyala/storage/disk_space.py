"""Check of the free disk space before compactions and merges."""

import errno
import os

from nyala.env.files import Files


def require_space(files: Files, directory: str, need_bytes: int, reserve_bytes: int) -> None:
    """Refuse to fill a disk that the log and flushes need: this work is tried again.

    Args:
        files: the file system.
        directory: directory of the new files.
        need_bytes: largest size of the new files; 0: they may be written to any disk.
        reserve_bytes: free space to leave.

    Raises:
        OSError: ENOSPC; nothing was written.
    """
    free = files.free_bytes(directory) if need_bytes else 0
    if need_bytes and free < need_bytes + reserve_bytes:
        text = f"a compaction in {directory} writes up to {need_bytes} bytes and leaves {reserve_bytes} "
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {text}(wal_reserve_mb), {free} are free"
        )
