"""Checks of a frame in the driver, before any task runs."""

from contextlib import nullcontext
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from nyala.common.errors import SchemaMismatch
from nyala.common.schema import from_arrow
from nyala.spark.writes import options as writer


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_decimal_for_a_floating_column_is_refused_with_advice_for_spark(monkeypatch, kind):
    schema = from_arrow(pa.schema({"k": pa.int64(), "v": kind}), ["k"])
    table = SimpleNamespace(definition=schema)
    client = SimpleNamespace(table=lambda name: table, now=lambda: 1)
    monkeypatch.setattr(writer, "connect", lambda masters: nullcontext(client))
    frame = pa.table({"k": [1], "v": [Decimal("0.5")]}).schema
    with pytest.raises(SchemaMismatch) as caught:
        writer.WriteOptions.of("t", "", {}, frame)
    assert f"cast(v as {kind})" in caught.value.message
    assert "round_decimals" not in caught.value.message
