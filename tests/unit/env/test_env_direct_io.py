"""Direct writes: whole pages of aligned memory, other writes through the page cache."""

import errno
import mmap
import os

import pytest

from nyala.env.direct_io import PAGE, DirectWriter
from nyala.env.files import SystemFiles


def pages(count, fill=7):
    """Memory at a page's address."""
    memory = mmap.mmap(-1, count * PAGE)
    memory[:] = bytes([fill]) * (count * PAGE)
    return memoryview(memory)


@pytest.mark.parametrize(
    "sizes",
    [
        (4 * PAGE,),
        (4 * PAGE + 1, 3),
        (1, 4 * PAGE),
        (2 * PAGE, 2 * PAGE, 17),
        (PAGE - 1,),
        (0, PAGE),
    ],
)
def test_appended_data_of_any_size_is_complete(tmp_path, sizes):
    files, path = SystemFiles(), str(tmp_path / "file")
    file, whole = files.open_append(path, direct=True), b""
    for number, size in enumerate(sizes, 1):
        data = pages(5, number)[:size]
        whole += bytes(data)
        assert file.append([data]) == len(whole)
        file.sync(data_only=True)
        file.release()
    file.close()
    assert files.read(path) == whole
    again = files.open_append(path, len(whole), direct=True)
    again.append([b"unaligned", pages(1)])
    again.close()
    assert files.read(path) == whole + b"unaligned" + bytes(pages(1))


def test_whole_pages_bypass_page_cache_where_supported(tmp_path):
    path = tmp_path / "file"
    path.touch()
    writer = DirectWriter(str(path))
    wrote = writer.write(pages(3)[: 2 * PAGE + 5], 0)
    assert wrote in (0, 2 * PAGE), "0 on a file system without direct writes"
    for data, offset in ((pages(2)[1:], 0), (pages(2), 5), (pages(2)[: PAGE - 1], 0)):
        assert writer.write(data, offset) == 0
    writer.close()
    writer.close()
    assert writer.write(pages(1), 0) == 0


def test_direct_io_falls_back_to_buffered_and_full_disk_is_reported(tmp_path, monkeypatch):
    files = SystemFiles()
    (tmp_path / "probe").touch()
    able = DirectWriter(str(tmp_path / "probe")).write(pages(1), 0)

    def refuse(code):
        def pwrite(*_):
            raise OSError(code, os.strerror(code))

        return pwrite

    monkeypatch.setattr(os, "pwrite", refuse(errno.EINVAL))
    file = files.open_append(str(tmp_path / "usual"), direct=True)
    file.append([pages(2)])
    file.close()
    assert files.read(str(tmp_path / "usual")) == bytes(pages(2))
    monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
    if able:
        full = files.open_append(str(tmp_path / "full"), direct=True)
        with pytest.raises(OSError, match="No space left"):
            full.append([pages(2)])
        full.close()


def test_file_that_cannot_be_opened_for_direct_writes_is_closed(tmp_path, monkeypatch):
    """Flushes are tried again while no file is left: each attempt would lose one more."""
    opened, system_open = list[int](), os.open

    def limited(path, flags, *mode):
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(system_open(path, flags, *mode))
        return opened[-1]

    monkeypatch.setattr(os, "open", limited)
    with pytest.raises(OSError, match="Too many open files"):
        SystemFiles().open_append(str(tmp_path / "file"), direct=True)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
