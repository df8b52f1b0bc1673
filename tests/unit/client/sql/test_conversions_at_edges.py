"""Values of two types in one column, and filters at the limits of push-down."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.client.sql.filters import MAX_DEPTH, MAX_LIST_BYTES, as_predicate
from nyala.common.batches import to_batches
from nyala.common.errors import SchemaMismatch
from nyala.common.frames import definition_of
from nyala.common.schema import from_arrow

NOON = dt.datetime(2020, 1, 1, 12)
EAST = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))
ROWS = from_arrow(pa.schema([("k", pa.int64()), ("s", pa.string())]), ["k"])


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("values", [[NOON, EAST], [EAST, NOON]])
def test_timestamps_with_and_without_zone_are_not_mixed(zone, values):
    table = from_arrow(pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", zone))]), ["k"])
    bad = values.index(EAST if zone is None else NOON)
    with pytest.raises(SchemaMismatch, match=f"column 't', row {bad}"):
        to_batches([{"k": n, "t": v} for n, v in enumerate(values)], table)


class Zone(dt.tzinfo):
    """A zone with this offset at all times."""

    def __init__(self, offset: dt.timedelta | None) -> None:
        self.offset = offset

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta | None:
        return self.offset

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> str:
        return "zone"


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("offset", [None, dt.timedelta(seconds=3661, microseconds=5)])
@pytest.mark.parametrize("beside", [[], [EAST]])
def test_zone_without_whole_second_offset_is_refused(zone, offset, beside):
    """Arrow would treat the first as UTC and truncate the other."""
    table = from_arrow(pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", zone))]), ["k"])
    values = [*beside, NOON.replace(tzinfo=Zone(offset))]
    with pytest.raises(SchemaMismatch, match=f"column 't', row {len(beside) if zone else '.'}"):
        to_batches([{"k": n, "t": v} for n, v in enumerate(values)], table)
    if zone:
        good = [EAST, NOON.replace(tzinfo=Zone(dt.timedelta(seconds=-3661)))]
        (batch,) = to_batches([{"k": n, "t": v} for n, v in enumerate(good)], table)
        assert batch.column("t").to_pylist() == good


def test_mixed_integer_widths_give_widest_column():
    made = definition_of([{"k": np.int8(1)}, {"k": 300}, {"k": np.int16(7)}], ["k"]).schema
    assert made.column("k").type == pa.int64()


@pytest.mark.parametrize(("depth", "pushed"), [(MAX_DEPTH - 1, True), (MAX_DEPTH + 9, False)])
def test_too_deep_filter_is_evaluated_by_duckdb(depth, pushed):
    deep = pc.field("s") == "a"
    for n in range(depth):
        one = pc.field("k") == n
        deep = (one & deep) if n % 2 else (one | deep)
    assert (as_predicate(deep, ROWS) is not None) is pushed


@pytest.mark.parametrize(("count", "pushed"), [(100, True), (MAX_LIST_BYTES // 8 + 1, False)])
def test_too_long_list_is_evaluated_by_duckdb(count, pushed):
    field, unknown = pc.field("k"), pc.scalar(pa.scalar(None, pa.bool_()))
    among = pc.if_else(field.is_valid(), field.isin(pa.array(range(count), pa.int64())), unknown)
    assert (as_predicate(among, ROWS) is not None) is pushed
