"""The checksum of rows depends on every value, and not on their order and batches."""

import datetime
import decimal

import pyarrow as pa
import pytest

from nyala.common.ids import ColumnId
from nyala.tablet.read.checksum import MODULO, checksum

IDS = [ColumnId(i) for i in range(9)]
ROWS = pa.record_batch(
    {
        "k": pa.array([1, 2, 3, 4], pa.int64()),
        "flag": pa.array([True, False, None, True]),
        "small": pa.array([1, -1, 0, None], pa.int8()),
        "ratio": pa.array([0.5, -0.0, None, 1e300]),
        "text": pa.array(["", "a", None, "ab"]),
        "raw": pa.array([b"b", b"", b"\x00", None]),
        "day": pa.array([datetime.date(2020, 1, n) for n in (1, 2, 3, 4)], pa.date32()),
        "moment": pa.array([1, 2, 3, None], pa.timestamp("us", "UTC")),
        "price": pa.array(
            [decimal.Decimal("1.23"), None, decimal.Decimal("-1"), decimal.Decimal(0)],
            pa.decimal128(12, 2),
        ),
    }
)


def total(*batches):
    return sum(checksum(b, IDS) for b in batches) % MODULO


def test_checksum_is_independent_of_order_and_batches():
    whole = total(ROWS)
    assert total(ROWS.slice(0, 1), ROWS.slice(1, 2), ROWS.slice(3)) == whole
    assert total(ROWS.take(pa.array([3, 1, 0, 2]))) == whole
    assert total(ROWS, ROWS.slice(0, 0)) == whole
    assert total(ROWS.slice(0, 3)) != whole
    assert total(ROWS, ROWS) != whole


@pytest.mark.parametrize("name", ROWS.schema.names)
def test_checksum_detects_values_swapped_between_rows(name):
    number = ROWS.schema.names.index(name)
    turned = ROWS.column(number).take(pa.array([0, 2, 1, 3]))
    assert total(ROWS.set_column(number, name, turned)) != total(ROWS)


def test_checksum_ignores_bytes_under_a_null():
    def under(value, valid):
        buffers = [pa.py_buffer(bytes([valid])), pa.py_buffer(bytes([value]))]
        return pa.record_batch([pa.Array.from_buffers(pa.int8(), 1, buffers)], ["a"])

    [first] = IDS[:1]
    null = checksum(under(7, 0), [first])
    assert null == checksum(under(9, 0), [first])
    assert null not in (checksum(under(v, 1), [first]) for v in range(256))


def test_checksum_detects_value_moved_to_another_column():
    a, b = (pa.array([x], pa.int64()) for x in (1, 2))
    both = checksum(pa.record_batch([a, b], ["a", "b"]), IDS[:2])
    assert both != checksum(pa.record_batch([b, a], ["a", "b"]), IDS[:2])
    assert both != checksum(pa.record_batch([a, b], ["a", "b"]), IDS[1:3])
