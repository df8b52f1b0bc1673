"""A client process of small writes: `python -m benchmarks.small_writes MASTERS TABLE NUMBER`."""

import random
import sys

import pyarrow as pa

import nyala
from benchmarks.load import in_threads, serve

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
KEYS = 1_000_000
VALUE_BYTES = 192
"""Text which, with an int64 key, makes a row of 200 bytes."""


def main(masters: str, name: str, number: int) -> None:
    """Upsert one row at a time on the orders of `load.Clients`."""
    with nyala.connect(masters) as client:
        table = client.table(name)
        table.upsert([{"k": number, "v": ""}])
        rng = random.Random(number)
        keys = [rng.randrange(KEYS) for _ in range(100_000)]
        value = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=VALUE_BYTES))

        def call(caller: int, number: int) -> None:
            key = keys[(caller * 7919 + number) % len(keys)]
            table.upsert([{"k": key, "v": value}])

        serve(lambda callers, seconds: in_threads(call, callers, seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
