"""Load beside the tests: four processes that compute, and one that writes and syncs all the time.

They end with this process, however it ends.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from scripts.testrun import leftovers

COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""
SYNC = """
import os, tempfile
parent = os.getppid()
with tempfile.TemporaryFile() as file:
    while os.getppid() == parent:
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
