"""Partitioning as written by users, and messages of refusals."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import InvalidArgument
from nyala.common.partitioning.partition import KeyRange, PartitionSchema, describe, partitions
from nyala.common.partitioning.partition_spec import LEVEL_SEED, Hash, Partition, Range, resolve

SCHEMA = schemas.from_arrow(
    pa.schema([("host", pa.string()), ("n", pa.int16()), ("day", pa.date32()), ("v", pa.int64())]),
    ["host", "n", "day"],
)
ONE = schemas.from_arrow(pa.schema([("n", pa.int8()), ("v", pa.int64())]), ["n"])


def test_missing_partition_spec_gives_one_tablet():
    for spec in (None, Partition()):
        assert resolve(spec, SCHEMA) == PartitionSchema()
        assert len(partitions(SCHEMA, resolve(spec, SCHEMA))) == 1


def test_hash_levels_have_separate_seeds_and_ranges_are_sorted():
    spec = Partition(
        hash=[Hash(["host"], 3), Hash(["n", "day"], 2)],
        range=Range(["day"], [(date(2024, 2, 1), None), (None, date(2024, 1, 1))]),
    )
    made = resolve(spec, SCHEMA)
    assert [level.seed for level in made.hash] == [LEVEL_SEED, LEVEL_SEED + 1]
    assert [level.column_ids for level in made.hash] == [(0,), (1, 2)]
    assert made.ranges[0].lower is None
    assert made.ranges[-1].upper is None
    assert made.count == len(set(partitions(SCHEMA, made))) == 12
    assert describe(SCHEMA, made, partitions(SCHEMA, made)[-1]) == (
        "hash(host) 2 of 3, hash(n, day) 1 of 2, 2024-02-01 <= day"
    )


def test_range_bounds_are_scalars_or_tuples_and_may_touch():
    made = resolve(Partition(range=Range(["n"], [(0, 10), (10, (20,))])), ONE)
    assert made.ranges == (KeyRange(b"\x80", b"\x8a"), KeyRange(b"\x8a", b"\x94"))
    two = resolve(
        Partition(range=Range(["n", "host"], [((0, "a"), (0, "b")), (None, (0, ""))])), SCHEMA
    )
    assert two.ranges == (KeyRange(None, b"\x80\x00"), KeyRange(b"\x80\x00a", b"\x80\x00b"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Partition(hash=[Hash(["v"], 4)]), "'v' is not in the primary key"),
        (Partition(hash=[Hash(["x"], 4)]), "no column 'x'"),
        (Partition(hash=[Hash(["host", "host"], 4)]), "'host' is named twice"),
        (
            Partition(hash=[Hash(["host"], 4), Hash(["n", "host"], 4)]),
            "'host' is in two hash levels",
        ),
        (Partition(hash=[Hash(["host"], 1)]), "has 1 buckets; a hash level has 2 to 1024"),
        (Partition(hash=[Hash(["host"], 1025)]), "has 1025 buckets"),
        (Partition(hash=[Hash(["host"], True)]), "not bool"),
        (Partition(hash=[Hash(["host"], "4")]), "not str"),  # type: ignore
        (Partition(hash=[Hash([], 4)]), "at least one column"),
        (Partition(hash=[Hash("host", 4)]), "list with at least one column name, not 'host'"),
        (Partition(hash=[Hash([5], 4)]), "column names, not int"),  # type: ignore
        (Partition(hash=Hash(["host"], 4)), "hash= takes a list"),  # type: ignore
        (Partition(hash=["host"]), "nyala.Hash, not str"),  # type: ignore
        (Partition(range=[1, 2]), "nyala.Range, not list"),  # type: ignore
        (Hash(["host"], 4), "not Hash"),
        (Partition(hash=[Hash(["host"], 1024), Hash(["n"], 10)]), "10240 partitions"),
        (Partition(range=Range(["n"], [])), "needs bounds"),
        (Partition(range=Range(["v"], [(1, 2)])), "'v' is not in the primary key"),
        (Partition(range=Range(["n"], [5])), "a pair"),  # type: ignore
        (Partition(range=Range(["n"], [(1, 2, 3)])), "a pair"),  # type: ignore
        (Partition(range=Range(["n"], [(2, 1)])), "is empty"),
        (Partition(range=Range(["n"], [(1, 1)])), "is empty"),
        (Partition(range=Range(["n"], [(1, 5), (4, 8)])), "[1, 5) and [4, 8) of n overlap"),
        (Partition(range=Range(["n"], [(None, 5), (None, 8)])), "overlap"),
        (Partition(range=Range(["n"], [(1, None), (4, None)])), "overlap"),
        (Partition(range=Range(["n"], [(None, None), (4, 5)])), "overlap"),
        (Partition(range=Range(["n"], [("a", None)])), "'a' is not a valid int16"),
        (Partition(range=Range(["n"], [(1.5, None)])), "1.5 is not a valid int16"),
        (Partition(range=Range(["n"], [(40_000, None)])), "40000 is not a valid int16"),
        (Partition(range=Range(["n"], [(2**70, None)])), "is not a valid int16"),
        (Partition(range=Range(["n"], [(object(), None)])), "is not a valid int16"),
        (Partition(range=Range(["n"], [((1, 2), None)])), "2 values for 1 columns"),
        (Partition(range=Range(["n", "host"], [(1, None)])), "1 values for 2 columns"),
        (Partition(range=Range(["n", "host"], [((1, None), None)])), "cannot be open"),
        (Partition(range=Range(["host"], [("\ud800", None)])), "is not a valid string"),
        (Partition(range=Range(["host"], [(b"a", None)])), "is not a valid string"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_invalid_partition_specs_are_refused(spec, words):
    with pytest.raises(InvalidArgument) as caught:
        resolve(spec, SCHEMA)
    assert words in caught.value.message


def test_range_bounds_are_converted_exactly():
    table = schemas.from_arrow(
        pa.schema([("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(5, 2))]), ["t", "d"]
    )
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    made = resolve(Partition(range=Range(["t", "d"], [((noon, Decimal("1.5")), (noon, 2))])), table)
    assert len(made.ranges) == 1
    with pytest.raises(InvalidArgument, match="time zone"):
        resolve(Partition(range=Range(["t"], [(noon.replace(tzinfo=None), None)])), table)
    with pytest.raises(InvalidArgument, match=r"1\.555"):
        resolve(Partition(range=Range(["d"], [(Decimal("1.555"), None)])), table)
