"""A client process of appends: `python -m benchmarks.journal_appends MASTERS JOURNAL NUMBER`.

Each entry has 256 bytes and begins with the time at which its append began: nanoseconds of the machine's
monotonic clock.
"""

import struct
import sys
import time

import nyala
from benchmarks.load import in_threads, serve

LOG = "log"
ENTRY_BYTES = 256
STAMP = struct.Struct("<Q")


def main(masters: str, name: str) -> None:
    """Append one entry at a time on the orders of `load.Clients`."""
    with nyala.connect(masters) as client:
        log = client.journal(name).log(LOG)
        rest = bytes(ENTRY_BYTES - STAMP.size)
        log.append(STAMP.pack(time.monotonic_ns()) + rest)

        def call(caller: int, number: int) -> None:
            log.append(STAMP.pack(time.monotonic_ns()) + rest)

        serve(lambda callers, seconds: in_threads(call, callers, seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
