"""Parser of value expressions: columns, literals, arithmetic, and parentheses.

    value   = product { (+ | - | '||') product }
    product = unary { (* | / | %) unary }
    unary   = [+ | -] (column | literal | '(' value ')')

`common/expressions/where.py` parses conditions over values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.predicate import Predicate
from nyala.common.expressions.tree import ColumnRef, Constant, Expression, Operator, arithmetic
from nyala.common.expressions.where_literals import Literal, constant, kind_of
from nyala.common.expressions.where_tokens import Cursor, Token, TokenKind, problem, tokenize
from nyala.common.schema import Column, Schema

MAX_DEPTH = 64
"""Maximum depth of parentheses."""
_OPERATORS = {op.value: op for op in Operator}
_PRODUCTS = (Operator.MULTIPLY, Operator.DIVIDE, Operator.MODULO)


@dataclass(frozen=True, slots=True)
class Operand:
    """A parsed value or, within parentheses, a condition.

    Attributes:
        tree: a column or a literal alone, an expression, or a predicate.
        at: position of its first character, from 1.
    """

    tree: Column | Literal | Expression | Predicate
    at: int


def as_expression(operand: Operand) -> Expression:
    """Return an operand as an expression.

    Raises:
        InvalidArgument: a condition, or a literal that no type holds.
    """
    tree = operand.tree
    if isinstance(tree, Column):
        return ColumnRef(tree.id, tree.type)
    if isinstance(tree, Literal):
        return Constant(constant(tree))
    if isinstance(tree, Predicate):
        raise problem("a condition is not a value; write a column or a literal", operand.at)
    return tree


def parse_value(text: str, schema: Schema) -> Expression:
    """Parse a value expression of columns of a table, for instance `price * 2` or `name || '!'`.

    Raises:
        InvalidArgument: the text is not an expression, or its types do not fit; the message has the position
            (details: `position`, from 1) and a correction.
        NotFound: an unknown column.
    """
    cursor = Cursor(tokenize(text))
    if cursor.peek().kind is TokenKind.END:
        raise problem("the expression is empty; write a column or a literal", 1)
    found = ValueParser(cursor, schema, nulls=True).value(0)
    rest = cursor.peek()
    if rest.kind is not TokenKind.END:
        raise problem(f"{rest} is unexpected here; join values with + - * / % ||", rest.at)
    return as_expression(found)


class ValueParser:
    """Parser of values by precedence of operators, with limited nesting.

    Args:
        tokens: tokens of the text.
        schema: schema of the table.
        inside: parses what is in parentheses of a given depth; None: a value.
        nulls: accept the literal null.
    """

    def __init__(
        self,
        tokens: Cursor,
        schema: Schema,
        inside: Callable[[int], Operand] | None = None,
        *,
        nulls: bool = False,
    ) -> None:
        self._tokens = tokens
        self._schema = schema
        self._inside = inside or self.value
        self._nulls = nulls

    def value(self, depth: int, wanted: str = "a column or a literal") -> Operand:
        """Parse a value.

        Args:
            depth: number of open parentheses.
            wanted: description of what is expected, for errors.
        """
        operands = [self._unary(depth, wanted)]
        waiting: list[tuple[Operator, int]] = []
        while (token := self._tokens.accept(TokenKind.SIGN, *_OPERATORS)) is not None:
            op = _OPERATORS[token.text]
            while waiting and (waiting[-1][0] in _PRODUCTS or op not in _PRODUCTS):
                _combine(operands, *waiting.pop())
            waiting.append((op, token.at))
            operands.append(self._unary(depth, f"a value after {token.text}"))
        while waiting:
            _combine(operands, *waiting.pop())
        return operands[0]

    def _unary(self, depth: int, wanted: str) -> Operand:
        sign = self._tokens.accept(TokenKind.SIGN, "+", "-")
        if sign is None:
            return self._atom(depth, wanted)
        follows = self._tokens.peek()
        if follows.kind is TokenKind.SIGN and follows.text in ("+", "-"):
            raise problem(
                f"expected a number, a column or ( after {sign.text}, found {follows}", follows.at
            )
        found = self._atom(depth, f"a number after {sign.text}")
        number = found.tree if isinstance(found.tree, Literal) else None
        if number is not None and number.kind == "number" and number.text[0] not in "+-":
            return Operand(Literal("number", sign.text + number.text, sign.at), sign.at)
        operands = [Operand(Literal("number", sign.text + "1", sign.at), sign.at), found]
        _combine(operands, Operator.MULTIPLY, sign.at)
        return operands[0]

    def _atom(self, depth: int, wanted: str) -> Operand:
        token = self._tokens.peek()
        if self._tokens.accept(TokenKind.SIGN, "("):
            if depth >= MAX_DEPTH:
                raise problem(
                    f"parentheses are nested more than {MAX_DEPTH} deep; simplify the expression",
                    token.at,
                )
            found = self._inside(depth + 1)
            self._tokens.expect(
                TokenKind.SIGN, ")", f"to close the parenthesis of character {token.at}"
            )
            return found
        typed = (
            token.text.lower() in ("date", "timestamp") and token.text not in self._schema.by_name
        )
        if self._tokens.at_column() and not (typed and token.kind is TokenKind.NAME):
            return Operand(self._column(), token.at)
        return Operand(self.literal(wanted), token.at)

    def _column(self) -> Column:
        token = self._tokens.take()
        found = self._schema.by_name.get(token.text)
        if found is None:
            quoted = token.kind is TokenKind.QUOTED_NAME
            if not quoted and self._tokens.accept(TokenKind.SIGN, "("):
                raise problem(
                    f"{token.text[:40]}(...) is a function, and there are none here; use ilike to compare "
                    "in lower case, or client.sql(...), which has functions",
                    token.at,
                )
            text = self._schema.unknown(token.text)
            hint = "" if "did you mean" in text else "; strings are in single quotes"
            raise NotFound(
                f"where, at character {token.at}: {text}{hint}",
                {"position": str(token.at)},
            )
        return found

    def literal(self, wanted: str) -> Literal | Expression:
        """Parse a literal.

        Args:
            wanted: description of what is expected, for errors.
        """
        token = self._tokens.take()
        if token.kind is TokenKind.KEYWORD and token.text in ("true", "false"):
            return Literal("boolean", token.text, token.at)
        if token.kind is TokenKind.NAME and token.text.lower() in ("date", "timestamp"):
            text = self._tokens.take()
            if text.kind is not TokenKind.STRING:
                raise problem(f"expected a quoted text after {token.text}, found {text}", text.at)
            return Literal(token.text.lower(), text.text, token.at)
        kind = kind_of(token.kind)
        if kind is not None:
            return Literal(kind, token.text, token.at)
        if token.kind is TokenKind.KEYWORD and token.text == "null":
            if self._nulls:
                return Constant(pa.scalar(None))
            raise problem("nothing equals null; write is null or is not null", token.at)
        raise _expected(wanted, token)


def _expected(wanted: str, token: Token) -> InvalidArgument:
    return problem(f"expected {wanted}, found {token}", token.at)


def _combine(operands: list[Operand], op: Operator, at: int) -> None:
    """Replace the last two operands by an operation on them."""
    right, left = operands.pop(), operands.pop()
    try:
        tree = arithmetic(op, as_expression(left), as_expression(right))
    except InvalidArgument as err:
        raise err if "position" in err.details else problem(err.message, at) from err
    operands.append(Operand(tree, left.at))
