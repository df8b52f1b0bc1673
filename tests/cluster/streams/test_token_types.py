"""Every stored value survives a scan token, which is serialised and run by another connection."""

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nyala
from nyala import ScanToken
from nyala.testing import MiniCluster
from tests.properties.support.type_ends import ENDS, any_values, bits, table_with

KINDS = list(ENDS)
NAME = "token_types"


@pytest.fixture(scope="module")
def table(cluster: MiniCluster) -> Iterator[nyala.Table]:
    """A table with one column of each type."""
    schema = pa.schema([("k", pa.int64()), *((f"v{n}", kind) for n, kind in enumerate(KINDS))])
    with cluster.connect() as client:
        yield client.create_table(NAME, schema, primary_key=["k"], replicas=1)


def run(scan: nyala.Scan, *columns: str) -> list[list[bytes | None]]:
    """Return the bits of columns that tokens read after two ways of serialisation, which have to agree."""
    found = []
    for token in scan.tokens():
        both = ScanToken.parse(bytes(token)), pickle.loads(pickle.dumps(token))
        parsed, unpickled = ([b for b in one.to_batches() if b.num_rows] for one in both)
        assert parsed == unpickled or str(parsed) == str(unpickled)  # NaN differs from itself
        found += parsed
    return [bits(pa.chunked_array([b[c] for b in found] or [[]])) for c in columns]


def check(table: nyala.Table, values: list[Any], number: int) -> None:
    """Write values of one type; read them by tokens, with and without conditions."""
    column, kind = f"v{number}", KINDS[number]
    stored = table_with(values, kind).rename_columns(["k", column])
    table.delete_where("true")
    table.upsert(stored, nan_is_null=False)
    assert run(table.scan(["k", column], order=True), column) == [bits(stored[column])]
    for where in (f"{column} is null", f"{column} is not null", "k > 0"):
        scan = table.scan(where=where, order=True)
        assert run(scan, "k", column) == [bits(scan.to_arrow()[c]) for c in ("k", column)]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: str(KINDS[n]))
def test_ends_of_types_survive_tokens(table, number):
    check(table, [None, *ENDS[KINDS[number]]], number)
    check(table, [None, None], number)


@pytest.mark.full
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_values_survive_tokens(table, data):
    number = data.draw(st.integers(0, len(KINDS) - 1))
    values = data.draw(st.lists(any_values(KINDS[number]), min_size=1, max_size=5))
    check(table, values, number)
