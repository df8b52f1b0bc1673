"""A disk of limited size, mounted over one folder of a server."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def small_disk(folder: str) -> Iterator[None]:
    """Mount a file system of half a megabyte over a folder; its files are hidden until the end."""
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("a disk of limited size needs the right to mount one")
    try:
        yield
    finally:
        # lazily, since the server may have a file open; its next attempt uses the other folder
        subprocess.run(["umount", "--lazy", folder], check=True)
