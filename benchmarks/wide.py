"""The wide row of all comparisons: int64 key, 4 int64, 2 double, 2 strings of 20."""

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [("k", pa.int64())]
    + [(f"i{n}", pa.int64()) for n in range(4)]
    + [(f"d{n}", pa.float64()) for n in range(2)]
    + [(f"s{n}", pa.string()) for n in range(2)]
)


def rows(keys: np.ndarray, seed: int) -> pa.RecordBatch:
    """Return rows with these keys and random values."""
    rng = np.random.default_rng(seed)
    count = len(keys)
    ints = [pa.array(rng.integers(0, 1 << 40, count)) for _ in range(4)]
    doubles = [pa.array(rng.random(count)) for _ in range(2)]
    letters = rng.integers(97, 123, (2, count * 20), dtype=np.uint8)
    offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * 20).tobytes())
    texts = [
        pa.StringArray.from_buffers(count, offsets, pa.py_buffer(s.tobytes())) for s in letters
    ]
    return pa.record_batch([pa.array(keys), *ints, *doubles, *texts], schema=SCHEMA)
