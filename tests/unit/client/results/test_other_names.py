"""Names and arguments that users of Kudu, Delta and pandas type first: errors say what to use instead."""

import re
import sys
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from nyala.aio.client import AsyncClient
from nyala.client.alter import Alter
from nyala.client.checks import OTHER_NAMES
from nyala.client.client import Client
from nyala.client.scan import Scan
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument
from nyala.common.frames import definition_of
from nyala.common.optional.needed import needed
from nyala.common.schema import from_arrow
from nyala.common.values.casting import Conversion, conversion_of
from tests.unit.client.support.unconnected import unconnected_table

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
CLASSES: dict[str, type] = {
    kind.__name__: kind for kind in (AsyncClient, Client, Table, Scan, Alter)
}
OWNERS: dict[str, type] = {"client": Client, "table": Table}


def unconnected() -> Any:
    return unconnected_table(SCHEMA)


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_each_replacement_exists_and_no_replaced_name_does(kind):
    for name, instead in OTHER_NAMES[kind].items():
        assert not hasattr(CLASSES[kind], name), f"{kind}.{name} is a name of its own"
        for owner, called in re.findall(r"(?:\b(client|table)\.)(\w+)", instead):
            assert hasattr(OWNERS[owner], called), f"{kind}.{name}: {owner}.{called}"
        first = re.match(r"(\w+)\(", instead)
        if first:
            assert hasattr(CLASSES[kind], first[1]), f"{kind}.{name}: {first[1]}"


def test_error_of_a_name_of_another_system_says_what_to_use():
    table = unconnected()
    with pytest.raises(
        AttributeError, match=r"attribute 'to_pandas'; use scan\(\)\.to_pandas\(\)$"
    ):
        table.to_pandas()
    with pytest.raises(
        AttributeError, match=r"'Scan' object has no attribute 'add_predicate'; use table.scan"
    ):
        table.scan().add_predicate("k", "=", 1)
    with pytest.raises(AttributeError, match=r"attribute 'scam'$") as found:
        table.scam()
    assert (found.value.name, found.value.obj) == ("scam", table)
    assert not hasattr(table, "to_pandas")


@pytest.mark.parametrize("key", ["a", 5, ["a"], (5, 6)])
def test_key_without_column_names_is_refused_with_an_example(key):
    with pytest.raises(InvalidArgument, match=r"pass \{'k': \.\.\.\}, or a list"):
        unconnected().get(key)


def test_unknown_argument_is_named_with_the_known_ones():
    with pytest.raises(
        TypeError,
        match="'n_replicas'; the arguments for conversions are nan_is_null and round_decimals",
    ):
        conversion_of({"n_replicas": 1})
    with pytest.raises(TypeError, match="unexpected argument 'batch_size'"):
        unconnected().upsert([{"k": 1}], batch_size=5)
    assert conversion_of({"round_decimals": True}) == Conversion(round_decimals=True)


def test_condition_in_place_of_rows_is_refused_with_the_method_for_it():
    with pytest.raises(
        InvalidArgument, match=r"is a path or a text, .* delete_where and update_where"
    ):
        unconnected().delete("k = 1")


@pytest.mark.parametrize(("package", "call"), [("pandas", "to_pandas"), ("polars", "to_polars")])
def test_scan_without_its_package_says_what_to_install(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(
        ModuleNotFoundError, match=rf"{call}\(\) needs .* pip install {package},"
    ) as err:
        needed(package, f"{call}()")
    assert err.value.name == package


def test_broken_package_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "broken_frames.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        needed("broken_frames", "to_frames()")


def test_polars_query_defines_no_table_and_says_what_does():
    with pytest.raises(InvalidArgument, match=r"collect_schema\(\), or lazy.collect\(\)"):
        definition_of(pl.LazyFrame({"k": [1]}), ["k"])
    schema = definition_of(pl.LazyFrame({"k": [1]}).collect_schema(), ["k"]).schema
    assert schema.arrow.names == ["k"]
