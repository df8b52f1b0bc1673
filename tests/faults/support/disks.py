"""A real ext4 file system with power failures: unsynced data is lost after the next mount.

The cut is ext4's shutdown ioctl without a flush of its journal: from then on nothing reaches the image,
and every write and sync fails with EIO; the next mount replays the journal. What ext4 had already
written to the image before the cut stays: the image has no write cache of its own that could lose it.
Use it inside a sandbox only (sandbox.py).
"""

import ctypes
import fcntl
import os
import random
import struct
import subprocess
from pathlib import Path

from tests.waiting import wait_until

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
PAGE = 4096


class Disk:
    """One image and where it is mounted.

    Args:
        image: file to make.
        folder: where to mount it.
        megabytes: its size; the file is sparse.
    """

    def __init__(self, image: Path, folder: Path, megabytes: int = 512) -> None:
        self.image, self.folder = image, folder
        self.cuts = 0
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        command = ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)]
        subprocess.run(command, check=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.mount()

    def mount(self) -> None:
        """Mount it; after a cut this replays the journal."""
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.folder)], check=True)

    def cut(self) -> None:
        """Cut the power of the disk. Processes that use it continue and get errors."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)
        self.cuts += 1

    def write_back(self, path: Path, rng: random.Random) -> None:
        """Let some pages of a file reach the image, others not, as memory pressure does at any time.

        After a power failure, of unsynced writes a later page may exist without an earlier one: a torn write.
        """
        with open(path, "rb") as file, open(self.folder / "unrelated", "ab") as other:
            pages = max(1, os.fstat(file.fileno()).st_size // PAGE)
            for _ in range(rng.randrange(1, 6)):
                at = ctypes.c_int64(PAGE * rng.randrange(pages))
                ctypes.CDLL(None).sync_file_range(file.fileno(), at, ctypes.c_int64(PAGE), 7)
            other.write(b"x")
            other.flush()
            os.fsync(
                other.fileno()
            )  # commits the journal, and with it that those pages are written

    def unmount(self) -> None:
        """Unmount it; processes that use it have ended or are ending."""
        command = ["umount", str(self.folder)]
        wait_until(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
            f"no process uses {self.folder}", 60,
        )  # fmt: skip

    def power_on(self) -> None:
        """Mount the disk again, as a machine that starts after a power failure."""
        self.unmount()
        self.mount()
