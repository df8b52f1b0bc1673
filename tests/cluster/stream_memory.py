"""Memory of a stream: a process writes rows from a generator, reads them back, and prints its peak.

python -m tests.cluster.stream_memory --megabytes 10000 --limit-mb 1000

starts a small cluster, runs the process with the stream, and fails if its resident memory exceeds the limit.
Resident memory is what counts: a limit of the address space would also count what is reserved and never used.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

import numpy as np
import pyarrow as pa

import nyala
from nyala.testing import MiniCluster

BATCH_ROWS = 10_000
WIDTH = 100
"""Bytes of the text of a row."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])


class NoPandas(MetaPathFinder):
    """Hides pandas, on which the client does not depend; pyarrow imports it where it is installed (45 MB)."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuse pandas; other packages are found as usual."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden", name=fullname)


def batches(rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield batches with random texts, which do not compress.

    Args:
        rows: number of rows of all batches.
        seed: of the texts.
    """
    rng = np.random.default_rng(seed)
    for first in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - first)
        letters = rng.integers(97, 123, count * WIDTH, np.uint8)
        offsets = pa.py_buffer(np.arange(0, (count + 1) * WIDTH, WIDTH, dtype=np.int32))
        texts = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(letters)])
        keys = pa.array(np.arange(first, first + count))
        yield pa.RecordBatch.from_arrays([keys, texts], schema=SCHEMA)


def peak_mb() -> int:
    """Return the largest resident memory of this process so far, in MB."""
    with open("/proc/self/status") as status:
        (line,) = [one for one in status if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 // 1_000_000


def stream(masters: str, megabytes: int, seed: int, *, follows: bool) -> int:
    """Write and read so many megabytes; return the peak of this process.

    Args:
        masters: addresses of the masters.
        megabytes: bytes of all rows.
        seed: of the texts.
        follows: follow all changes too.
    """
    rows = megabytes * 1_000_000 // (WIDTH + 8)
    with nyala.connect(masters) as client:
        table = client.create_table(
            "stream", SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], 2)]), replicas=1
        )
        begin = client.now()
        done = table.upsert(batches(rows, seed))
        assert (done.rows, done.errors.num_rows) == (rows, 0), done
        reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(rows, seed))
        assert table.upsert(reader).rows == rows
        for order in (False, True):
            read = sum(batch.num_rows for batch in table.scan(order=order).to_batches())
            assert read == rows, f"{read} of {rows} rows were read, order={order}"
        if follows:
            with table.follow(since=begin) as feed:  # as far behind as it can be
                followed = 0
                while followed < 2 * rows:
                    followed += next(feed).num_rows
            assert followed == 2 * rows, f"{followed} changes of {2 * rows} were followed"
        client.drop_table("stream")
    return peak_mb()


def run(masters: str, megabytes: int, seed: int, *, follows: bool = False) -> int:
    """Run `stream` in a process of its own; return its peak in MB.

    Args:
        masters: addresses of the masters.
        megabytes: bytes of all rows.
        seed: of the texts.
        follows: as for `stream`.
    """
    words = ["--masters", masters, "--megabytes", f"{megabytes}", "--seed", f"{seed}"]
    words += ["--follow"] if follows else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.stream_memory", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


def main() -> int:
    """Run the stream of a given cluster, or of a new one in another process; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masters", default="")
    parser.add_argument("--megabytes", type=int, default=10_000)
    parser.add_argument("--limit-mb", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--follow", action="store_true", help="follow all changes too")
    asked = parser.parse_args()
    if asked.masters:
        sys.meta_path.insert(0, NoPandas())
        print(stream(asked.masters, asked.megabytes, asked.seed, follows=asked.follow))
        return 0
    with MiniCluster(1, 1) as cluster:
        peak = run(cluster.masters, asked.megabytes, asked.seed, follows=asked.follow)
    more = ", and all changes followed," if asked.follow else ""
    print(f"{asked.megabytes} MB written twice and read twice{more} with a peak of {peak} MB")
    return int(peak > asked.limit_mb)


if __name__ == "__main__":
    sys.exit(main())
