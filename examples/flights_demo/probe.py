"""A writer of small rows, all the time, so that a gap in the acknowledgements can be seen."""

import threading
import time
from itertools import pairwise

import pyarrow as pa

import nyala
from nyala.common.errors import NyalaError
from nyala.common.partitioning.partition import locate

TABLE = "probe"
TABLETS = 6
SCHEMA = pa.schema([("k", pa.int64()), ("value", pa.int64())])
PAUSE_S = 0.02
"""Pause after each row: without it, the probe alone uses most of one core."""


class Probe(threading.Thread):
    """Inserts row after row under keys that fall into every tablet, and notes each acknowledgement.

    Args:
        masters: of the cluster.
    """

    def __init__(self, masters: str) -> None:
        super().__init__(daemon=True, name="probe")
        self._client = nyala.connect(masters)
        hashed = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        self._table = self._client.create_table(TABLE, SCHEMA, ["k"], hashed)
        self._partition = self._client.describe(TABLE).partition
        self._told = threading.Event()
        self._last = [0.0] * TABLETS  # of each tablet, when its latest row was acknowledged
        self.acknowledged: list[float] = []
        self.failure = ""

    def run(self) -> None:
        """Insert until told to stop; a row that is refused or not acknowledged ends it."""
        while not self._told.is_set():
            key = len(self.acknowledged)
            row = pa.record_batch({"k": [key], "value": [7 * key]}, SCHEMA)
            tablet = int(locate(self._table.definition, self._partition, row)[0])
            try:
                result = self._table.insert(row)
            except NyalaError as err:
                self.failure = str(err)
                return
            if result.errors.num_rows:
                self.failure = f"row {key}: {result.errors.to_pylist()}"
                return
            self._last[tablet] = time.monotonic()
            self.acknowledged.append(self._last[tablet])
            self._told.wait(PAUSE_S)

    def resumed_since(self, moment: float) -> bool:
        """Whether every tablet has acknowledged a row since a moment."""
        return min(self._last) > moment

    def longest_gap_s(self, begin: float, end: float) -> float:
        """Return the longest time without an acknowledgement that overlaps an interval."""
        times = [t for t in list(self.acknowledged) if begin - 5 <= t <= end]
        return max((b - a for a, b in pairwise(times) if b >= begin), default=0.0)

    def stop(self) -> None:
        """Stop writing."""
        self._told.set()
        self.join(timeout=120)

    def verify(self) -> str:
        """Return nothing if every acknowledged row is there once with its value, else what is wrong."""
        rows = self._table.scan(order=True).to_arrow()
        self._client.close()
        count = len(self.acknowledged)
        keys, values = rows["k"].to_pylist(), rows["value"].to_pylist()
        if self.failure:
            return self.failure
        if keys[:count] != list(range(count)) or len(keys) > count + 1:
            return f"{len(keys)} rows where {count} were acknowledged"
        return "" if values == [7 * k for k in keys] else "a row has another value"
