"""How many times slower this machine is than the reference machine: the factor of all deadlines of tests."""

import os
import tempfile
import time

LOOP = compile("x = 0\nfor i in range(1_000_000): x += i", "loop", "exec")
REFERENCE_LOOP_S = 0.07
"""Time of `LOOP` on the reference machine (2.6 GHz)."""
SYNCS = 50
REFERENCE_SYNCS_S = 0.25
"""Time of `SYNCS` syncs of a small file on the reference machine, at most."""
MOST = 10.0


def slowness() -> float:
    """Return the factor, from 1 to 10: of Python or of syncs, whichever is slower here."""
    return min(MOST, max(1.0, _loop_s() / REFERENCE_LOOP_S, _syncs_s() / REFERENCE_SYNCS_S))


def _loop_s() -> float:
    """Return the time of the loop, the best of five: waiting for a processor counts."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        exec(LOOP, {})
        times.append(time.monotonic() - started)
    return min(times)


def _syncs_s() -> float:
    with tempfile.TemporaryFile() as file:
        started = time.monotonic()
        for _ in range(SYNCS):
            file.write(b"x" * 100)
            file.flush()
            os.fdatasync(file.fileno())
        return time.monotonic() - started
