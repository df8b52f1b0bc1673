"""A file written by a thread: complete when synced; errors are reported."""

import errno
import os

import pytest

from nyala.env import write_behind
from nyala.env.files import SystemFiles
from nyala.env.write_behind import WriteBehindFile


class Full:
    """A file on a disk that is full after `room` pieces."""

    def __init__(self, room):
        self.room = room
        self.closed = self.synced = False

    def append(self, buffers):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return 0

    def sync(self, *, data_only):
        self.synced = True

    def close(self):
        self.closed = True


@pytest.mark.parametrize("sizes", [(), (0, 1), (5000, 3), (4096, 4096), (4095, 4098, 1), (20000,)])
def test_written_data_is_complete_after_sync(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(write_behind, "BUFFER_BYTES", 4096)
    files, path, whole = SystemFiles(), str(tmp_path / "file"), b""
    file = files.open_new(path)
    for size in sizes:
        data = os.urandom(size)
        whole += data
        assert file.append([data[: size // 2], memoryview(data)[size // 2 :]]) == len(whole)
    file.sync(data_only=False)
    assert files.read(path) == whole
    file.append([b"more"])
    file.sync(data_only=True)
    file.close()
    assert files.read(path) == whole + b"more"


@pytest.mark.parametrize("room", [0, 1, 2])
def test_full_disk_is_reported_at_sync_at_the_latest(monkeypatch, room):
    monkeypatch.setattr(write_behind, "BUFFER_BYTES", 4096)
    full = Full(room)
    file = WriteBehindFile(full)

    def write():
        for _ in range(3):
            file.append([bytes(4000)])
        file.sync(data_only=False)

    with pytest.raises(OSError, match="No space left"):
        write()
    assert not full.synced
    file.close()
    assert full.closed
