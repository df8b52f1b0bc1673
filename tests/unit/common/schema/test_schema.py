"""Schemas: type names in both directions, and invalid definitions."""

from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.schema import from_arrow
from nyala.common.types import arrow_type, plain_type, type_name


class Own(pa.ExtensionType):  # type: ignore[misc]
    """An extension type over a storage type that tables have."""

    def __init__(self):
        super().__init__(pa.int32(), "test.own.of.schemas")

    def __arrow_ext_serialize__(self):
        return b""


NAMES = [
    "bool", "int8", "int16", "int32", "int64", "float", "double", "string", "binary", "date",
    "timestamp[us]", "timestamp[us,UTC]", "decimal(1,0)", "decimal(18,4)", "decimal(38,38)",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_type_names_are_their_own_inverse(name):
    assert type_name(arrow_type(name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "int", "decimal(0,0)", "decimal(39,0)", "decimal(5,6)", "decimal(5)", "decimal(²,0)",
     "decimal(5,-1)", "decimal(999999999999,0)", "timestamp[ns]", "x" * 1000],
)  # fmt: skip
def test_unknown_type_names(name):
    with pytest.raises(InvalidArgument, match="unknown column type") as caught:
        arrow_type(name)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "kind",
    [pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin"), pa.time64("us"),
     pa.list_(pa.int8()), pa.uuid(), Own(),
     pa.map_(pa.int8(), pa.int8()), pa.decimal256(5, 2), pa.decimal128(5, -1), pa.null(), pa.date64()],
    ids=str,
)  # fmt: skip
def test_unsupported_types_are_named(kind):
    with pytest.raises(InvalidArgument) as caught:
        from_arrow(pa.schema([("k", pa.int8()), ("v", kind)]), ["k"])
    assert str(kind) in caught.value.message


def test_type_variants_are_stored_as_plain_type():
    for variant in (
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.large_string()),
    ):
        assert plain_type(variant) == pa.string()
    made = from_arrow(pa.schema([("v", pa.large_binary()), ("k", pa.string_view())]), ["k"])
    assert made.arrow == pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.binary())])
    assert made.key_ids == (0,)
    with pytest.raises(NotFound, match="no column 'x'; the columns are: k, v"):
        made.column("x")


FIELDS = [("k", pa.int8()), ("f", pa.float64()), ("v", pa.int8())]


@pytest.mark.parametrize(
    ("fields", "key", "more", "words"),
    [
        (FIELDS, [], {}, "needs a primary key"),
        (FIELDS, "k", {}, "a key is a list; pass ['k']"),
        (FIELDS, [0], {}, "0 is not a column name: names are str; pass '0'"),
        (FIELDS, ["x"], {}, "no column 'x'"),
        (FIELDS, ["k", "k"], {}, "'k' is named twice"),
        ([*FIELDS, FIELDS[0]], ["k"], {}, "'k' is named twice"),
        (FIELDS, ["f"], {}, "'f' of type double cannot be part of the primary key"),
        ([*FIELDS, ("_op", pa.int8())], ["k"], {}, "'_op'"),
        ([*FIELDS, ("", pa.int8())], ["k"], {}, "''"),
        ([*FIELDS, ("é" * 200, pa.int8())], ["k"], {}, "256 bytes"),
        (FIELDS, ["k"], {"defaults": {"k": 1}}, "default of key column 'k'"),
        (FIELDS, ["k"], {"defaults": {"v": 300}}, "default 300 of column 'v'"),
        (FIELDS, ["k"], {"defaults": {"v": 2**70}}, "of column 'v' is not a valid int8"),
        (FIELDS, ["k"], {"defaults": {"v": "x"}}, "default 'x' of column 'v'"),
        (FIELDS, ["k"], {"defaults": {"w": 1}}, "no column 'w'"),
        (FIELDS, ["k"], {"immutable": ["w"]}, "no column 'w'"),
        ([(f"c{i}", pa.int8()) for i in range(1001)], ["c0"], {}, "at most 1000"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_invalid_table_definitions_are_refused(fields, key, more, words):
    with pytest.raises(InvalidArgument) as caught:
        from_arrow(pa.schema(fields), key, **more)
    assert words in caught.value.message


def test_defaults_and_immutable_columns():
    made = from_arrow(
        pa.schema([*FIELDS, ("d", pa.decimal128(5, 2))]), ["k"],
        defaults={"v": 3, "d": Decimal("1.5"), "f": None}, immutable=["f"],
    )  # fmt: skip
    assert made.column("v").default == pa.scalar(3, pa.int8())
    assert made.column("d").default == pa.scalar(Decimal("1.50"), pa.decimal128(5, 2))
    assert made.column("f").default is None
    assert [c.name for c in made.columns if c.immutable] == ["f"]
    assert [c.nullable for c in made.columns] == [False, True, True, True]
