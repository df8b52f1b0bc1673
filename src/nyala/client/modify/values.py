"""New values of an update by predicate: constants, and expressions over the columns of a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.read.read_spec import key_names
from nyala.common.errors import InvalidArgument, NotFound, SchemaMismatch
from nyala.common.expressions.evaluation import columns_in, evaluate_value, result_type
from nyala.common.expressions.parser import parse_value
from nyala.common.expressions.tree import Expression
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.common.values.casting import check_types, exact_cast, family
from nyala.common.values.python_values import scalar_of, shown


@dataclass(frozen=True, slots=True)
class ValueText:
    """Text of a value expression; made by `expr`.

    Attributes:
        text: for instance `price * 1.1`.
    """

    text: str


def expr(text: str) -> ValueText:
    """Return an expression over columns, for the values of `Table.update_where`; a plain str is a constant.

    Args:
        text: columns, literals, `+ - * / %` and `||`: "price * 1.1", "name || '!'".

    Raises:
        InvalidArgument: it is no text.
    """
    if not isinstance(text, str):
        raise InvalidArgument(
            f'expr({shown(text)}) takes a text over columns, as "price * 1.1"; give a constant without expr'
        )
    return ValueText(text)


class Assignments:
    """The new values of some columns, checked against a schema.

    Args:
        schema: schema of the table.
        values: a constant, or what `expr` returns, by column name.

    Attributes:
        reads: names of the columns that are read, key columns first.

    Raises:
        InvalidArgument: no values; a key column or an immutable one; a constant or expression that does not
            fit; a null for a column without nulls.
        NotFound: an unknown column.
    """

    def __init__(self, schema: Schema, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping) or not values:
            raise InvalidArgument(
                f"values={shown(values)}: pass a dict with the new value of each column to change, as "
                '{"state": "done", "price": nyala.expr("price * 1.1")}'
            )
        self._schema = schema
        self._values: dict[Column, pa.Scalar | Expression] = {}
        used = set()
        for name, value in values.items():
            column = _changeable(schema, name)
            if isinstance(value, ValueText):
                tree = _parsed(schema, column, value.text)
                used |= columns_in(tree)
                self._values[column] = tree
            else:
                self._values[column] = _constant(column, value)
        keys = key_names(schema)
        others = (schema.by_id[i].name for i in sorted(used))
        self.reads = (*keys, *(n for n in others if n not in keys))

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the key columns of some rows and the new values of the assigned columns.

        Args:
            rows: the columns of `reads`.

        Raises:
            SchemaMismatch: a value that its column cannot hold; the message has the key of the row.
        """
        columns = list(self._schema.key_columns)
        arrays = [rows.column(c.name) for c in columns]
        for column, value in self._values.items():
            if isinstance(value, pa.Scalar):
                made = pa.repeat(value, rows.num_rows)
            else:
                made = self._computed(column, value, rows)
            columns.append(column)
            arrays.append(made)
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def _computed(self, column: Column, tree: Expression, rows: pa.RecordBatch) -> pa.Array:
        by_id = self._schema.by_id
        try:
            found = evaluate_value(tree, lambda i: rows.column(by_id[i].name), rows.num_rows)
            chunks = pa.chunked_array([_rounded(found, column.type)])
            return exact_cast(chunks, column.type, f"column {column.name!r}").combine_chunks()
        except SchemaMismatch as err:
            at = int(err.details.get("row", "0"))
            raise SchemaMismatch(
                f"the new value of column {column.name!r} does not fit {column.type}, in the row with key "
                f"{_key_of(self._schema, rows, at)}; change the expression, or exclude the row in where",
                {"column": column.name},
            ) from err


def _key_of(schema: Schema, rows: pa.RecordBatch, at: int) -> str:
    """Return the primary key of one of some rows, for messages."""
    return ", ".join(f"{n}={shown(rows.column(n)[at])}" for n in key_names(schema))


def _changeable(schema: Schema, name: Any) -> Column:
    if not isinstance(name, str):
        raise InvalidArgument(f"values: a column name is a str, not {shown(name)}")
    column = schema.column(name)
    if column.id in schema.key_ids:
        raise InvalidArgument(
            f"column {name!r} is in the primary key, which cannot be changed; delete the rows, and insert "
            "them with other keys"
        )
    if column.immutable:
        raise InvalidArgument(
            f"column {name!r} is immutable: it keeps its first value; leave it out"
        )
    return column


def _constant(column: Column, value: Any) -> pa.Scalar:
    if isinstance(value, pa.Scalar) and not value.is_valid:
        value = None
    if value is None:
        _check_null(column)
        return pa.scalar(None, column.type)
    what = f"the new value {shown(value)[:80]} of column {column.name!r}"
    try:
        return scalar_of(value, column.type, what)
    except InvalidArgument as err:
        if not isinstance(value, str):
            raise
        raise InvalidArgument(
            f"{err.message}; an expression over columns is nyala.expr({value[:80]!r})"
        ) from err


def _check_null(column: Column) -> None:
    if not column.nullable:
        raise InvalidArgument(f"column {column.name!r} does not take nulls; give another value")


def _parsed(schema: Schema, column: Column, text: str) -> Expression:
    try:
        tree = parse_value(text, schema)
    except (InvalidArgument, NotFound) as err:
        what = err.message.removeprefix("where, ")
        raise type(err)(f"the new value of column {column.name!r}: {what}", err.details) from err
    kind = result_type(tree)
    if pa.types.is_null(kind):
        _check_null(column)
    elif (family(kind), family(column.type)) != ("decimal", "float"):
        try:
            check_types(kind, column.type, f"the new value of column {column.name!r}")
        except SchemaMismatch as err:
            raise InvalidArgument(err.message) from err
    return tree


def _rounded(found: pa.Array, target: pa.DataType) -> pa.Array:
    """Round results to the digits that a decimal or floating-point column stores."""
    kinds = family(found.type), family(target)
    if kinds == ("decimal", "decimal") and found.type.scale > target.scale:
        return pc.round(found, ndigits=target.scale, round_mode="half_towards_infinity")
    if kinds == ("decimal", "float"):
        return found.cast(pa.float64()).cast(target, safe=False)
    if kinds == ("float", "float"):
        return found.cast(target, safe=False)
    return found
