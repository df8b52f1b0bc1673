"""User data of every form, for the tests of accepted and refused input."""

from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common import schema as schemas
from nyala.common.batches import to_batches

SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("v", pa.int32()),
            ("k", pa.int64()),
            ("s", pa.string()),
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("d", pa.decimal128(6, 2)),
            ("t", pa.timestamp("us")),
            ("z", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("b", pa.bool_()),
            ("x", pa.binary()),
        ]
    ),
    ["k", "s"],
)
ROWS = [{"k": 1, "s": "a", "v": 5}, {"k": 2, "s": "b", "v": None}]


def column(array, name):
    """Return one batch's column made of a user's array; the key is filled in."""
    table = pa.table({"k": np.arange(len(array)), "s": ["a"] * len(array), name: array})
    batches = to_batches(table, SCHEMA)
    return pa.concat_arrays([b.column(name) for b in batches])


class Own(pa.ExtensionType):  # type: ignore[misc]
    """An extension type over a storage type that tables have."""

    def __init__(self, storage=None):
        super().__init__(storage or pa.int32(), "test.own")

    def __arrow_ext_serialize__(self):
        return b""


def extended(storage):
    return pa.ExtensionArray.from_storage(Own(storage.type), storage)


class Stream:
    """Data with the C stream interface only."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TABLE = pa.table({"v": pa.array([5, None], pa.int64()), "s": ["a", "b"], "k": [1, 2]})
SHAPES = {
    "dicts": ROWS,
    "tuple of dicts": tuple(ROWS),
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "stream": Stream(TABLE),
    "reader": pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
    "sliced": pa.concat_tables([TABLE, TABLE, TABLE]).slice(2, 2),
    "chunked": pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "pandas": pd.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5.0, np.nan]}),
    "pandas of objects": pd.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5, None]}, dtype=object),
    "pandas with a key index": pd.DataFrame(
        {"v": [5.0, np.nan]},
        index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["k", "s"]),
    ),
    "filtered pandas": pd.DataFrame(
        {"k": [0, 1, 2], "s": ["", "a", "b"], "v": pd.array([0, 5, None], "Int16")}
    ).iloc[1:],
    "polars": pl.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5, None]}),
    "polars categorical": pl.DataFrame(
        {"k": [1, 2], "s": ["a", "b"], "v": [5, None]}, schema_overrides={"s": pl.Categorical}
    ),
    "large and dictionary": TABLE.set_column(
        1, "s", pa.array(["a", "b"], pa.large_string()).dictionary_encode()
    ),
    "views": TABLE.set_column(1, "s", pa.array(["a", "b"], pa.string_view())),
    "run ends": TABLE.set_column(2, "k", pc.run_end_encode(pa.array([1, 2]))),
}

DAY = date(2024, 2, 29)
NOON = datetime(2024, 2, 29, 12)

KEY = {"k": 1, "s": "a"}
