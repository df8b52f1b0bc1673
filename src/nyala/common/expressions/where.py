"""Parser of `where=`: a subset of SQL expressions, translated to a predicate.

    expression   = conjunction { OR conjunction }
    conjunction  = negation { AND negation }
    negation     = { NOT } term
    term         = value test | value, if it is boolean
    test         = sign value | [NOT] IN '(' value, ... ')' | [NOT] BETWEEN value AND value
                 | [NOT] (LIKE | ILIKE) 'pattern' [ESCAPE 'c'] | IS [NOT] NULL
    value        = columns, literals and '(' expression ')', joined by + - * / % ||
    literal      = number | 'string' | TRUE | FALSE | DATE '...' | TIMESTAMP '...' | x'hex'

`common/expressions/parser.py` parses values. A comparison of a column with a literal is exact and can use
statistics and keys; so can lists and prefixes. Keywords are case-insensitive, column names are not. Any text
gives a predicate, or InvalidArgument with the position, or NotFound for a column. The time is linear in the
length of the text.
"""

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.comparison import check_comparable
from nyala.common.expressions.parser import Operand, ValueParser, as_expression
from nyala.common.expressions.patterns import check_pattern, literal_prefix, with_backslash
from nyala.common.expressions.predicate import (
    FALSE,
    TRUE,
    UNKNOWN,
    Compare,
    CompareOp,
    CompareValues,
    In,
    IsNull,
    IsNullValue,
    Like,
    Not,
    Predicate,
    Prefix,
    all_of,
    any_of,
    negate,
)
from nyala.common.expressions.tree import ColumnRef, Expression
from nyala.common.expressions.where_literals import Literal, compare, in_list
from nyala.common.expressions.where_tokens import Cursor, TokenKind, problem, tokenize
from nyala.common.schema import Column, Schema

MAX_LIST = 100_000
MAX_VALUES = 1_000
"""Maximum length of a list of `in` that is not of literals, or not for a column."""
MAX_CONDITIONS = 100_000
_FLIPPED = {
    CompareOp.EQ: CompareOp.EQ,
    CompareOp.NE: CompareOp.NE,
    CompareOp.LT: CompareOp.GT,
    CompareOp.GT: CompareOp.LT,
    CompareOp.LE: CompareOp.GE,
    CompareOp.GE: CompareOp.LE,
}
_SIGNS = {op.value: op for op in CompareOp}


def parse(text: str, schema: Schema) -> Predicate:
    """Parse a where text for a table.

    Raises:
        InvalidArgument: the text is not an expression, or types do not fit; the message has the position
            (details: `position`, from 1) and a correction.
        NotFound: an unknown column; the message has the nearest name.
    """
    cursor = Cursor(tokenize(text))
    if cursor.peek().kind is TokenKind.END:
        raise problem("the expression is empty; omit where= to select all rows", 1)
    parser = _Parser(cursor, schema)
    tree = parser.condition(parser.expression(0))
    rest = cursor.peek()
    if rest.kind is not TokenKind.END:
        raise problem(f"{rest} is unexpected here; join conditions with and, or", rest.at)
    return tree


class _Parser:
    """Recursive-descent parser with limited nesting, so that no text overflows the stack."""

    def __init__(self, tokens: Cursor, schema: Schema) -> None:
        self._tokens = tokens
        self._values = ValueParser(tokens, schema, self.expression)
        self._conditions = 0

    def expression(self, depth: int) -> Operand:
        """Parse conditions joined by and, or and not; a value alone is returned as it is."""
        first = self._conjunction(depth)
        if not self._tokens.accept(TokenKind.KEYWORD, "or"):
            return first
        parts = [self.condition(first), self.condition(self._conjunction(depth))]
        while self._tokens.accept(TokenKind.KEYWORD, "or"):
            parts.append(self.condition(self._conjunction(depth)))
        return Operand(any_of(_with_lists(parts, CompareOp.EQ)), first.at)

    def _conjunction(self, depth: int) -> Operand:
        first = self._negation(depth)
        if not self._tokens.accept(TokenKind.KEYWORD, "and"):
            return first
        parts = [self.condition(first), self.condition(self._negation(depth))]
        while self._tokens.accept(TokenKind.KEYWORD, "and"):
            parts.append(self.condition(self._negation(depth)))
        return Operand(all_of(_with_lists(parts, CompareOp.NE)), first.at)

    def _negation(self, depth: int) -> Operand:
        at = self._tokens.peek().at
        count = 0
        while self._tokens.accept(TokenKind.KEYWORD, "not"):
            count += 1
        found = self._term(depth)
        if not count:
            return found
        tree = self.condition(found)
        return Operand(negate(tree) if count % 2 else tree, at)

    def condition(self, found: Operand) -> Predicate:
        """Return a parsed part as a predicate.

        Raises:
            InvalidArgument: a value that is not boolean; too many conditions.
        """
        tree = found.tree
        if isinstance(tree, Predicate):
            return tree
        token = self._tokens.peek()
        if isinstance(tree, Column):
            if tree.type == pa.bool_():
                self._counted(TRUE, found.at)
                return Compare(tree.id, CompareOp.EQ, pa.scalar(True))
            raise problem(
                f"expected a comparison after column {tree.name!r} (= <> < <= > >=, in, between, like, is), "
                f"found {token}",
                token.at,
            )
        if isinstance(tree, Literal) and tree.kind == "boolean":
            return TRUE if tree.text == "true" else FALSE
        shown = str(tree) if isinstance(tree, Literal) else "a value"
        raise problem(f"{shown} is not a condition; compare it with a column", found.at)

    def _term(self, depth: int) -> Operand:
        left = self._values.value(depth, "a column, a literal, not or (")
        if isinstance(left.tree, Predicate):
            return left
        sign = self._tokens.accept(TokenKind.SIGN, *_SIGNS)
        if sign is not None:
            right = self._values.value(depth, f"a column or a literal after {sign.text}")
            return self._counted(_comparison(left, _SIGNS[sign.text], right, sign.at), left.at)
        if self._tokens.accept(TokenKind.KEYWORD, "is"):
            negative = self._tokens.accept(TokenKind.KEYWORD, "not")
            self._tokens.expect(TokenKind.KEYWORD, "null", "after is")
            tree = _is_null(left)
            return self._counted(negate(tree) if negative else tree, left.at)
        negative = self._tokens.accept(TokenKind.KEYWORD, "not")
        test = self._keyword_test(left, depth)
        if test is not None:
            return self._counted(negate(test) if negative else test, left.at)
        if negative:
            token = self._tokens.peek()
            raise problem(
                f"expected a comparison after not (in, between, like), found {token}", token.at
            )
        return left

    def _counted(self, tree: Predicate, at: int) -> Operand:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise problem(f"a where has at most {MAX_CONDITIONS} conditions; use several scans", at)
        return Operand(tree, at)

    def _keyword_test(self, left: Operand, depth: int) -> Predicate | None:
        if self._tokens.accept(TokenKind.KEYWORD, "in"):
            return _in(left, self._list(depth))
        if self._tokens.accept(TokenKind.KEYWORD, "between"):
            return self._between(left, depth)
        if self._tokens.accept(TokenKind.KEYWORD, "like"):
            return self._like(left, ignore_case=False)
        if self._tokens.accept_word("ilike"):
            return self._like(left, ignore_case=True)
        return None

    def _between(self, left: Operand, depth: int) -> Predicate:
        token = self._tokens.peek()
        if self._tokens.accept_word("symmetric"):
            raise problem("between symmetric is not supported; write the lower end first", token.at)
        low = self._values.value(depth, "a value after between")
        self._tokens.expect(TokenKind.KEYWORD, "and", "between the two ends")
        high = self._values.value(depth, "a value after and")
        return all_of(
            [
                _comparison(left, CompareOp.GE, low, low.at),
                _comparison(left, CompareOp.LE, high, high.at),
            ]
        )

    def _list(self, depth: int) -> list[Operand | None]:
        """Parse the values of `in`; a null is None."""
        self._tokens.expect(TokenKind.SIGN, "(", "after in")
        found: list[Operand | None] = []
        while not found or self._tokens.accept(TokenKind.SIGN, ","):
            token = self._tokens.peek()
            if len(found) >= MAX_LIST:
                raise problem(
                    f"an in-list has at most {MAX_LIST} values; use several scans", token.at
                )
            null = self._tokens.accept(TokenKind.KEYWORD, "null")
            found.append(None if null else self._values.value(depth, "a literal in the list"))
        self._tokens.expect(TokenKind.SIGN, ")", "to close the list")
        return found

    def _like(self, left: Operand, *, ignore_case: bool) -> Predicate:
        word = "ilike" if ignore_case else "like"
        token = self._tokens.take()
        if token.kind is not TokenKind.STRING:
            raise problem(f"expected a quoted pattern after {word}, found {token}", token.at)
        value = as_expression(left)
        if value.type != pa.string():
            named = repr(left.tree.name) if isinstance(left.tree, Column) else "the value"
            raise problem(f"{word} needs a string column; {named} has type {value.type}", token.at)
        escape = "\\"
        if self._tokens.accept_word("escape"):
            given = self._tokens.take()
            if (
                given.kind is not TokenKind.STRING
                or len(given.text) > 1
                or given.text in ("%", "_")
            ):
                raise problem(
                    f"expected one quoted character after escape, found {given}", given.at
                )
            escape = given.text
        try:
            pattern = with_backslash(token.text, escape)
            return _matching(value, pattern, ignore_case)
        except InvalidArgument as err:
            raise problem(err.message, token.at) from err


def _matching(value: Expression, pattern: str, ignore_case: bool) -> Predicate:
    text, rest = literal_prefix(pattern)
    if isinstance(value, ColumnRef) and not ignore_case:
        if rest == "":
            return Compare(value.column_id, CompareOp.EQ, pa.scalar(text))
        if rest == "%":
            return Prefix(value.column_id, text)
    check_pattern(pattern)
    return Like(value, pattern, ignore_case)


def _comparison(left: Operand, op: CompareOp, right: Operand, at: int) -> Predicate:
    """Return a comparison; of a column with a literal it has the fast form."""
    match left.tree, right.tree:
        case Column() as column, Literal() as literal:
            return compare(column, op, literal)
        case Literal() as literal, Column() as column:
            return compare(column, _FLIPPED[op], literal)
    sides = as_expression(left), as_expression(right)
    try:
        check_comparable(*sides)
    except InvalidArgument as err:
        hint = ""
        if "does not compare" in err.message:
            hint = "; strings are in single quotes, column names in double quotes or none"
        raise problem(err.message + hint, at) from err
    return CompareValues(op, *sides)


def _is_null(operand: Operand) -> Predicate:
    if isinstance(operand.tree, Column):
        return IsNull(operand.tree.id)
    return IsNullValue(as_expression(operand))


def _in(left: Operand, values: list[Operand | None]) -> Predicate:
    """Return `left in (values)`; with a null in the list it is true or unknown."""
    given = [v for v in values if v is not None]
    nulls = [UNKNOWN] if len(given) < len(values) else []
    if not given:
        return UNKNOWN
    literals = [v.tree for v in given if isinstance(v.tree, Literal)]
    if isinstance(left.tree, Column) and len(literals) == len(given):
        return any_of([in_list(left.tree, literals), *nulls])
    if len(given) > MAX_VALUES:
        raise problem(
            f"an in-list that is not of literals for a column has at most {MAX_VALUES} values",
            given[MAX_VALUES].at,
        )
    parts = [_comparison(left, CompareOp.EQ, value, value.at) for value in given]
    return any_of([*parts, *nulls])


def _with_lists(parts: list[Predicate], op: CompareOp) -> list[Predicate]:
    """Join several `=`, or `<>`, of a column to one list, so that they are evaluated at once.

    Args:
        parts: predicates joined by or, for `=`; by and, for `<>`.
        op: `=` or `<>`.
    """
    literals: dict[int, list[pa.Scalar]] = {}
    for part in parts:
        if isinstance(part, Compare) and part.op is op:
            literals.setdefault(part.column_id, []).append(part.value)
    made: list[Predicate] = []
    for part in parts:
        if not isinstance(part, Compare) or part.op is not op:
            made.append(part)
            continue
        values = literals.pop(part.column_id, [])
        if len(values) == 1:
            made.append(part)
        elif values:
            found = In(part.column_id, pa.array(values, part.value.type))
            made.append(found if op is CompareOp.EQ else Not(found))
    return made
