"""Alterations of schemas: the effect of each step, invalid steps, and compatible successors."""

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.common.alteration import (
    AddColumn,
    AllowNulls,
    DropColumn,
    RenameColumn,
    SetComment,
    SetDefault,
    alter,
    check_schema,
    check_successor,
)
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.common.ids import ColumnId
from nyala.common.schema import MAX_DEFAULT_BYTES, Schema, from_arrow

SCHEMA = from_arrow(
    pa.schema(
        [("k", pa.int64()), ("a", pa.int32()), pa.field("s", pa.string(), nullable=False)],
    ),
    ["k"],
    defaults={"a": 1},
)


def names(schema: Schema) -> list[tuple[int, str]]:
    return [(c.id, c.name) for c in schema.columns]


def test_alteration_steps_are_cumulative_and_make_one_version():
    made = alter(
        SCHEMA,
        [
            RenameColumn("a", "b"),
            RenameColumn("s", "a"),
            AddColumn("s", pa.large_string(), default="x", immutable=True),
            DropColumn("b"),
            AddColumn("b", pa.decimal128(5, 2), nullable=False, default=Decimal("1.5")),
            RenameColumn("k", "key"),
            AllowNulls("a"),
            RenameColumn("b", "b"),
            SetComment("key", "who"),
            SetComment("b", "how much"),
        ],
    )
    assert names(made) == [(0, "key"), (2, "a"), (3, "s"), (4, "b")]
    assert (made.version, made.next_column_id, made.key_ids) == (1, 5, (0,))
    a, s, b = made.value_columns
    assert (a.nullable, a.type, a.read_default) == (True, pa.string(), None)
    assert (s.type, s.immutable, s.nullable) == (pa.string(), True, True)
    assert s.default == s.read_default == pa.scalar("x")
    assert [c.comment for c in made.columns] == ["who", "", "", "how much"]
    assert (b.nullable, b.read_default) == (False, pa.scalar(Decimal("1.50"), pa.decimal128(5, 2)))


def test_column_id_is_not_reused():
    made = SCHEMA
    for _ in range(5):
        made = alter(made, [AddColumn("n", pa.int8())])
        made = alter(made, [DropColumn("n")])
    assert (made.next_column_id, made.version, len(made.columns)) == (8, 10, 3)
    n = replace(made.columns[1], id=ColumnId(7), name="n", read_default=pa.scalar(1, pa.int32()))
    with pytest.raises(InvalidArgument, match="id 7 of 'n' was used before"):
        check_successor(made, replace(made, version=11, columns=(*made.columns, n)))


@pytest.mark.row("A14")
def test_older_rows_have_default_at_column_addition():
    made = alter(SCHEMA, [AddColumn("n", pa.int8(), default=7), AddColumn("o", pa.int8())])
    made = alter(made, [SetDefault("n", None), SetDefault("o", 3), SetDefault("a", None)])
    n, o = made.column("n"), made.column("o")
    assert (n.default, n.read_default) == (None, pa.scalar(7, pa.int8()))
    assert (o.default, o.read_default) == (pa.scalar(3, pa.int8()), pa.scalar(None, pa.int8()))
    assert (made.column("a").default, made.column("a").read_default) == (None, None)


@pytest.mark.parametrize(
    ("steps", "error", "words"),
    [
        ([], InvalidArgument, "needs at least one step"),
        ([AddColumn("a", pa.int8())], AlreadyPresent, "'a' already"),
        ([AddColumn("_op", pa.int8())], InvalidArgument, "'_op'"),
        ([AddColumn("é" * 129, pa.int8())], InvalidArgument, "256 bytes"),
        ([AddColumn("n", pa.int8(), nullable=False)], InvalidArgument, "needs a default"),
        ([AddColumn("n", pa.list_(pa.int8()))], InvalidArgument, "list<item: int8>"),
        ([AddColumn("n", pa.int8(), default=300)], InvalidArgument, "default 300 of column 'n'"),
        ([AddColumn("n", pa.int8(), default=1.5)], InvalidArgument, "default 1.5 of column 'n'"),
        ([AddColumn("n", pa.string(), default=b"\xff")], InvalidArgument, "of column 'n'"),
        ([AddColumn("n", pa.string(), default="\ud800")], InvalidArgument, "of column 'n'"),
        ([AddColumn("n", pa.decimal128(3, 1), default=Decimal("100.0"))], InvalidArgument, "'n'"),
        ([AddColumn("n", pa.timestamp("us"), default=2**70)], InvalidArgument, "'n'"),
        ([AddColumn("n", pa.binary(), default=bytes(MAX_DEFAULT_BYTES + 1))], InvalidArgument, "1025"),
        ([AddColumn(f"c{i}", pa.int8()) for i in range(998)], InvalidArgument, "at most 1000"),
        ([DropColumn("k")], InvalidArgument, "'k' is part of the primary key"),
        ([DropColumn("x")], NotFound, "no column 'x'; the columns are: k, a, s"),
        ([DropColumn("a"), DropColumn("a")], NotFound, "no column 'a'; the columns are: k, s"),
        ([RenameColumn("a", "s")], AlreadyPresent, "'s' already"),
        ([RenameColumn("a", "")], InvalidArgument, "''"),
        ([RenameColumn("x", "y")], NotFound, "'x'"),
        ([SetDefault("k", 1)], InvalidArgument, "'k' is part of the primary key"),
        ([SetDefault("s", 1)], InvalidArgument, "default 1 of column 's'"),
        ([SetComment("k", "é" * 513)], InvalidArgument, "comment of column 'k' has over 1024"),
        ([SetComment("k", "\ud800")], InvalidArgument, "is not valid Unicode"),
        ([RenameColumn("a", "b\udfff")], InvalidArgument, "is not valid Unicode"),
        ([SetComment("x", "")], NotFound, "no column 'x'"),
        ([AllowNulls("k")], InvalidArgument, "'k' is part of the primary key"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_invalid_alterations_are_refused(steps, error, words):
    with pytest.raises(error) as caught:
        alter(SCHEMA, steps)
    assert words in caught.value.message


LATER = alter(SCHEMA, [AddColumn("n", pa.float64(), default=float("nan")), DropColumn("a")])
NAN = pa.scalar(float("nan"))


def edited(column: int = 1, **changes) -> Schema:
    columns = list(LATER.columns)
    columns[column] = replace(columns[column], **changes)
    return replace(LATER, version=2, columns=tuple(columns))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (replace(LATER), "version 1 with"),
        (replace(LATER, version=2, next_column_id=3), "next column id 3 is not above 3"),
        (replace(LATER, version=2, columns=LATER.columns[:2], next_column_id=3), "does not come after"),
        (replace(LATER, version=2, key_ids=(ColumnId(0), ColumnId(2))), "the key"),
        (replace(LATER, version=2, key_ids=()), "the first columns of"),
        (replace(LATER, version=2, columns=()), "the first columns of"),
        (edited(type=pa.binary()), "would change its type"),
        (edited(2, type=pa.float32(), default=None, read_default=None), "would change its type"),
        (edited(2, read_default=pa.scalar(1.0)), "its value in older rows"),
        (edited(2, read_default=None), "its value in older rows"),
        (edited(2, nullable=False), "allows nulls"),
        (edited(2, immutable=True), "immutable"),
        (edited(2, default=pa.scalar(1)), "default of type int64"),
        (edited(1, default=pa.scalar("x" * 1025)), "1025 bytes"),
        (edited(2, id=1), "id 1 of 'n' was used before"),
        (edited(2, id=2), "id or name appears twice"),
        (edited(2, name="s"), "id or name appears twice"),
        (edited(0, default=pa.scalar(1)), "key column 'k'"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_incompatible_schemas_are_refused(wrong, words):
    with pytest.raises(InvalidArgument) as caught:
        check_successor(LATER, wrong)
    assert words in caught.value.message


def test_schema_versions_may_be_skipped_and_nan_equals_nan():
    later = LATER
    for steps in ([SetDefault("n", 1.0)], [AddColumn("o", pa.int8())], [DropColumn("s")]):
        later = alter(later, steps)
    again = edited(2, read_default=pa.scalar(float("nan")))
    check_successor(LATER, again)
    check_successor(SCHEMA, later)
    check_schema(later)
    new = replace(later.column("o"), read_default=None)
    for wrong in (new, replace(new, nullable=False, read_default=pa.scalar(None, pa.int8()))):
        with pytest.raises(InvalidArgument, match="'o' has no value in older rows"):
            check_successor(SCHEMA, replace(later, columns=(*later.columns[:-1], wrong)))
