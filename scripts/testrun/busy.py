"""Load beside the tests: four processes that compute, and one that writes and syncs all the time."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from scripts.testrun import leftovers

COMPUTE = "while True: pass"
SYNC = """
import os, tempfile
with tempfile.TemporaryFile() as file:
    while True:
        file.seek(0)
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fdatasync(file.fileno())
"""


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep the machine busy until the end of the block."""
    started = []
    try:
        for code in (*[COMPUTE] * 4, SYNC):
            started.append(subprocess.Popen([sys.executable, "-c", code]))
            leftovers.OWN.add(started[-1].pid)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
            leftovers.OWN.discard(process.pid)
