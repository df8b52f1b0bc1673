"""Conditions of a query that servers evaluate although DuckDB does not pass them to a scan.

DuckDB passes comparisons of a column with constants. Of the conditions after `where`, those with patterns,
arithmetic, two columns or a null in a list are translated here to `where` text, if both have the same
meaning for every row; DuckDB evaluates all conditions again, so leaving some out is correct.

A row for which DuckDB ends the query with an error, because an integer overflows, is fetched too.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import Predicate
from nyala.common.expressions.where import parse
from nyala.common.expressions.where_tokens import quoted_name, quoted_text
from nyala.common.schema import Schema

Node = Mapping[str, Any]
"""Part of a query as `json_serialize_sql` gives it."""
MAX_DEPTH = 30
"""Maximum depth of a condition that is translated."""
_SIGNS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_PATTERNS = {
    "~~": "like",
    "!~~": "not like",
    "~~*": "ilike",
    "!~~*": "not ilike",
    "like_escape": "like",
    "not_like_escape": "not like",
    "ilike_escape": "ilike",
    "not_ilike_escape": "not ilike",
}
_TIMES = {
    "date": (pa.date32(), re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)),
    "timestamp": (
        pa.timestamp("us"),
        re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?", re.ASCII),
    ),
}
_SAME_SIDES = (pa.string(), pa.binary(), pa.bool_(), pa.date32())


class _Unsupported(Exception):
    """A condition has no translation with the same meaning."""


def conditions_of(query: Any, schemas: Mapping[str, Schema]) -> dict[str, Predicate]:
    """Return predicates that are true for every row of a table that a query uses.

    Args:
        query: as `json_serialize_sql` gives it.
        schemas: the tables, by name in lower case.

    Returns:
        Predicates by name in lower case, for some of the tables that are named once.
    """
    nodes = list(nodes_of(query))
    uses = Counter(folded(n["table_name"]) for n in nodes if n.get("type") == "BASE_TABLE")
    found: dict[str, Predicate] = {}
    for node in nodes:
        condition = node.get("where_clause")
        if node.get("type") != "SELECT_NODE" or not condition or node.get("sample"):
            continue
        relation = node.get("from_table") or {}
        for table in _filtered(relation):
            name = folded(table["table_name"])
            if uses[name] == 1 and name in schemas:
                scope = _Scope(table, schemas[name])
                predicate = _as_predicate(condition, scope, schemas[name])
                if predicate is not None:
                    found[name] = predicate
    return found


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a serialized query."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes_of(value)


def _filtered(relation: Node) -> Iterator[Node]:
    """Yield the tables after `from` whose rows are dropped if `where` is not true for them."""
    if relation.get("type") == "BASE_TABLE":
        plain = ("sample", "column_name_alias", "at_clause", "schema_name", "catalog_name")
        if not any(relation.get(name) for name in plain):
            yield relation
    elif relation.get("type") == "JOIN" and not relation.get("sample"):
        kind = relation.get("join_type")
        if relation.get("ref_type") in ("REGULAR", "CROSS", "NATURAL"):
            if kind in ("INNER", "LEFT", "SEMI"):
                yield from _filtered(relation["left"])
            if kind == "INNER":
                yield from _filtered(relation["right"])


def _as_predicate(condition: Node, scope: "_Scope", schema: Schema) -> Predicate | None:
    translation = _Translation(scope)
    texts = []
    for one in _conjuncts(condition):
        if _is_passed_by_duckdb(one):
            continue
        try:
            texts.append(translation.condition(one, 0))
        except _Unsupported:
            continue
    if not texts:
        return None
    text = " or ".join([" and ".join(texts), *translation.overflows])
    try:
        return parse(text, schema)
    except InvalidArgument:  # too long, or a pattern or a time that DuckDB refuses too
        return None


def _conjuncts(condition: Node) -> Iterator[Node]:
    if condition.get("type") != "CONJUNCTION_AND":
        yield condition
        return
    for child in condition["children"]:
        yield from _conjuncts(child)


def _is_passed_by_duckdb(condition: Node) -> bool:
    """Return whether a condition compares one column with constants; `filters.py` translates those."""
    compared = condition.get("class") in ("COMPARISON", "BETWEEN") or (
        condition.get("type") == "COMPARE_IN"
    )
    parts = list(nodes_of(condition))
    columns = sum(n.get("class") == "COLUMN_REF" for n in parts)
    other = any(n.get("class") == "FUNCTION" or n.get("kind") == "NULL_LITERAL" for n in parts)
    return compared and columns == 1 and not other


class _Scope:
    """Names by which conditions refer to the columns of one table."""

    def __init__(self, table: Node, schema: Schema) -> None:
        self._name = folded(table.get("alias") or table["table_name"])
        self._columns = {folded(c.name): c for c in schema.columns}

    def column(self, names: list[str]) -> "_Value":
        """Return a column; a name alone is that of one table only, or of columns that a join makes equal.

        Raises:
            _Unsupported: a column of another table, or of the result.
        """
        column = self._columns.get(folded(names[-1]))
        if column is None or [folded(n) for n in names[:-1]] not in ([], [self._name]):
            raise _Unsupported
        bits = column.type.bit_width if pa.types.is_integer(column.type) else 0
        return _Value(quoted_name(column.name), column.type, bits)


@dataclass(frozen=True, slots=True)
class _Value:
    """A translated value.

    Attributes:
        text: for `where`.
        type: its type; int64 for all integers.
        bits: size of the widest integer column in it; 0: there is none.
    """

    text: str
    type: pa.DataType
    bits: int = 0


class _Translation:
    """Translation of the conditions of one table.

    Args:
        scope: columns of the table.

    Attributes:
        overflows: texts of conditions that are true for every row for which a calculation overflows.
    """

    def __init__(self, scope: _Scope) -> None:
        self.overflows: list[str] = []
        self._scope = scope

    def condition(self, node: Node, depth: int) -> str:
        """Return a condition as text in parentheses.

        Raises:
            _Unsupported: it has no translation.
        """
        if depth > MAX_DEPTH:
            raise _Unsupported
        kind, parts = node.get("type"), node.get("children") or []
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            word = " and " if kind == "CONJUNCTION_AND" else " or "
            return f"({word.join(self.condition(p, depth + 1) for p in parts)})"
        if kind == "OPERATOR_NOT":
            return f"(not {self.condition(parts[0], depth + 1)})"
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            word = "is null" if kind == "OPERATOR_IS_NULL" else "is not null"
            return f"({self._value(parts[0], depth + 1).text} {word})"
        if kind == "COMPARE_IN":
            return self._in(parts, depth)
        if kind == "COMPARE_BETWEEN":
            value, low, high = (
                self._value(node[n], depth + 1) for n in ("input", "lower", "upper")
            )
            _check_sides(value, low)
            _check_sides(value, high)
            return f"({value.text} between {low.text} and {high.text})"
        if kind in _SIGNS:
            left, right = (
                self._value(node["left"], depth + 1),
                self._value(node["right"], depth + 1),
            )
            _check_sides(left, right)
            return f"({left.text} {_SIGNS[kind]} {right.text})"
        if kind == "FUNCTION":
            return self._pattern(node, depth)
        value = self._value(node, depth + 1)
        if value.type != pa.bool_():
            raise _Unsupported
        return f"({value.text})"

    def _in(self, parts: list[Node], depth: int) -> str:
        left, texts = self._value(parts[0], depth + 1), []
        for part in parts[1:]:
            if part.get("class") == "CONSTANT" and part["literal"]["kind"] == "NULL_LITERAL":
                texts.append("null")
                continue
            value = self._value(part, depth + 1)
            _check_sides(left, value)
            texts.append(value.text)
        return f"({left.text} in ({', '.join(texts)}))"

    def _pattern(self, node: Node, depth: int) -> str:
        """Translate `like` and `ilike`.

        Only a pattern in ASCII is compared without case: which other letters have a lower case depends on the
        version of Unicode, and DuckDB and the servers may have different ones.
        """
        word = _PATTERNS.get(node["function_name"])
        if word is None:
            raise _Unsupported
        value, *rest = _arguments(node)
        texts = [_text(part) for part in rest]
        escape = texts[1] if len(texts) == 2 else ""
        if "ilike" in word and (not texts[0].isascii() or escape.isalpha()):
            raise _Unsupported
        left = self._value(value, depth + 1)
        if left.type != pa.string():
            raise _Unsupported
        return f"({left.text} {word} {quoted_text(texts[0])} escape {quoted_text(escape)})"

    def _value(self, node: Node, depth: int) -> _Value:
        kind = node.get("class")
        if depth > MAX_DEPTH:
            raise _Unsupported
        if kind == "COLUMN_REF":
            return self._scope.column(node["column_names"])
        if kind == "FUNCTION":
            return self._calculated(node, depth)
        if kind == "CAST":
            return _time(node)
        literal = node.get("literal") if kind == "CONSTANT" else None
        if literal is None:
            raise _Unsupported
        match literal["kind"]:
            case "INTEGER" if abs(int(literal["text"])) < 1 << 63:
                return _Value(literal["text"], pa.int64())
            case "STRING":
                return _Value(quoted_text(literal["text"]), pa.string())
            case "BOOLEAN":
                return _Value(literal["text"], pa.bool_())
        raise _Unsupported

    def _calculated(self, node: Node, depth: int) -> _Value:
        """Translate `||` of strings, and + - * of integers and `%` by a positive constant.

        DuckDB calculates with a type that is at least as wide as each column; what does not fit the widest
        one may be an overflow.
        """
        sides = [self._value(part, depth + 1) for part in _arguments(node)]
        sign, kinds = node["function_name"], [s.type for s in sides]
        if len(sides) != 2:
            raise _Unsupported
        text = f"({sides[0].text} {sign} {sides[1].text})"
        if sign == "||" and kinds == [pa.string()] * 2:
            return _Value(text, pa.string())
        bits = max(side.bits for side in sides)
        if not all(map(pa.types.is_integer, kinds)) or not bits:
            raise _Unsupported
        if sign in ("+", "-", "*"):
            limit = 1 << (bits - 1)
            self.overflows.append(f"(not {text} between {-limit} and {limit - 1})")
        elif sign != "%" or not re.fullmatch(r"0*[1-9][0-9]*", sides[1].text):
            raise _Unsupported
        return _Value(text, pa.int64(), bits)


def _arguments(function: Node) -> list[Node]:
    given = function.get("arguments") or []
    if any(argument.get("name") for argument in given):
        raise _Unsupported
    return [argument["expression"] for argument in given]


def _text(node: Node) -> str:
    if node.get("class") != "CONSTANT" or node["literal"]["kind"] != "STRING":
        raise _Unsupported
    return str(node["literal"]["text"])


def _time(node: Node) -> _Value:
    """Translate `date '...'` and `timestamp '...'`."""
    name = node.get("type_expr", {}).get("type_name", "").lower()
    if name not in _TIMES or node.get("try_cast"):
        raise _Unsupported
    kind, form = _TIMES[name]
    text = _text(node["child"])
    if not form.fullmatch(text):
        raise _Unsupported
    return _Value(f"{name} {quoted_text(text)}", kind)


def _check_sides(left: _Value, right: _Value) -> None:
    """Reject two values that both sides may compare differently; floats, because of NaN.

    Raises:
        _Unsupported: such values.
    """
    same = left.type == right.type and (
        left.type in _SAME_SIDES
        or pa.types.is_timestamp(left.type)
        or pa.types.is_decimal(left.type)
    )
    if not same and not all(pa.types.is_integer(side.type) for side in (left, right)):
        raise _Unsupported


def folded(name: str) -> str:
    """Return a name as DuckDB compares it: the letters of ASCII in lower case."""
    return name.encode().lower().decode()
