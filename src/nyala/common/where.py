"""Parser of `where=`: a subset of SQL expressions, translated to a predicate.

    expression   = conjunction { OR conjunction }
    conjunction  = negation { AND negation }
    negation     = { NOT } term
    term         = '(' expression ')' | TRUE | FALSE | column test | literal sign column
    test         = sign literal | [NOT] IN '(' literal, ... ')' | [NOT] BETWEEN literal AND literal
                 | [NOT] LIKE 'prefix%' | IS [NOT] NULL | nothing, for a boolean column
    literal      = [+|-] number | 'string' | TRUE | FALSE | DATE '...' | TIMESTAMP '...' | x'hex'

Keywords are case-insensitive, column names are not. Any text gives a predicate, or InvalidArgument with the
position, or NotFound for a column.
"""

import pyarrow as pa

from nyala.common.errors import NotFound
from nyala.common.predicate import (
    FALSE,
    TRUE,
    Compare,
    CompareOp,
    IsNull,
    Predicate,
    Prefix,
    all_of,
    any_of,
    negate,
)
from nyala.common.schema import Column, Schema
from nyala.common.where_literals import Literal, compare, in_list, kind_of
from nyala.common.where_tokens import Cursor, Token, TokenKind, problem, tokenize

MAX_DEPTH = 64
MAX_LIST = 10_000
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
        InvalidArgument: the text is not an expression, or a literal does not fit its column; the message has
            the position (details: `position`, from 1) and a correction.
        NotFound: an unknown column.
    """
    cursor = Cursor(tokenize(text))
    if cursor.peek().kind is TokenKind.END:
        raise problem("the expression is empty; omit where= to select all rows", 1)
    tree = _Parser(cursor, schema).expression(0)
    rest = cursor.peek()
    if rest.kind is not TokenKind.END:
        raise problem(f"{rest} is unexpected here; join conditions with and, or", rest.at)
    return tree


class _Parser:
    """Recursive-descent parser with limited nesting, so that no text overflows the stack."""

    def __init__(self, tokens: Cursor, schema: Schema) -> None:
        self._tokens = tokens
        self._schema = schema

    def expression(self, depth: int) -> Predicate:
        parts = [self._conjunction(depth)]
        while self._tokens.accept(TokenKind.KEYWORD, "or"):
            parts.append(self._conjunction(depth))
        return any_of(parts) if len(parts) > 1 else parts[0]

    def _conjunction(self, depth: int) -> Predicate:
        parts = [self._negation(depth)]
        while self._tokens.accept(TokenKind.KEYWORD, "and"):
            parts.append(self._negation(depth))
        return all_of(parts) if len(parts) > 1 else parts[0]

    def _negation(self, depth: int) -> Predicate:
        negative = False
        while self._tokens.accept(TokenKind.KEYWORD, "not"):
            negative = not negative
        tree = self._term(depth)
        return negate(tree) if negative else tree

    def _term(self, depth: int) -> Predicate:
        token = self._tokens.peek()
        if self._tokens.accept(TokenKind.SIGN, "("):
            if depth >= MAX_DEPTH:
                raise problem(
                    f"parentheses are nested more than {MAX_DEPTH} deep; simplify the expression",
                    token.at,
                )
            tree = self.expression(depth + 1)
            self._tokens.expect(
                TokenKind.SIGN, ")", f"to close the parenthesis of character {token.at}"
            )
            return tree
        if self._tokens.at_column():
            return self._test(self._column())
        literal = self._literal("a column, a literal, not or (")
        sign = self._tokens.accept(TokenKind.SIGN, *_SIGNS)
        if sign is None:
            if literal.kind == "boolean":
                return TRUE if literal.text == "true" else FALSE
            raise problem(f"{literal} is not a condition; compare it with a column", literal.at)
        return compare(self._column(), _FLIPPED[_SIGNS[sign.text]], literal)

    def _column(self) -> Column:
        token = self._tokens.take()
        if token.kind not in (TokenKind.NAME, TokenKind.QUOTED_NAME):
            raise problem(f"expected a column name, found {token}", token.at)
        if token.text not in self._schema.by_name:
            raise NotFound(
                f"where, at character {token.at}: {self._schema.unknown(token.text)}",
                {"position": str(token.at)},
            )
        return self._schema.by_name[token.text]

    def _test(self, column: Column) -> Predicate:
        sign = self._tokens.accept(TokenKind.SIGN, *_SIGNS)
        if sign is not None:
            self._reject_column(column)
            return compare(column, _SIGNS[sign.text], self._literal(f"a literal after {sign.text}"))
        if self._tokens.accept(TokenKind.KEYWORD, "is"):
            negative = self._tokens.accept(TokenKind.KEYWORD, "not")
            self._tokens.expect(TokenKind.KEYWORD, "null", "after is")
            return negate(IsNull(column.id)) if negative else IsNull(column.id)
        negative = self._tokens.accept(TokenKind.KEYWORD, "not")
        tree = self._keyword_test(column)
        if tree is not None:
            return negate(tree) if negative else tree
        token = self._tokens.peek()
        if negative is None and column.type == pa.bool_():
            return Compare(column.id, CompareOp.EQ, pa.scalar(True))
        raise problem(
            f"expected a comparison after column {column.name!r} (= <> < <= > >=, in, between, like, is), "
            f"found {token}",
            token.at,
        )

    def _keyword_test(self, column: Column) -> Predicate | None:
        if self._tokens.accept(TokenKind.KEYWORD, "in"):
            return in_list(column, self._list())
        if self._tokens.accept(TokenKind.KEYWORD, "between"):
            low = self._literal("a literal after between")
            self._tokens.expect(TokenKind.KEYWORD, "and", "between the two ends")
            high = self._literal("a literal after and")
            return all_of([compare(column, CompareOp.GE, low), compare(column, CompareOp.LE, high)])
        if self._tokens.accept(TokenKind.KEYWORD, "like"):
            return _like(column, self._tokens.take())
        return None

    def _list(self) -> list[Literal]:
        self._tokens.expect(TokenKind.SIGN, "(", "after in")
        found = [self._literal("a literal in the list")]
        while self._tokens.accept(TokenKind.SIGN, ","):
            found.append(self._literal("a literal in the list"))
            if len(found) > MAX_LIST:
                raise problem(
                    f"an in-list has at most {MAX_LIST} values; use several scans", found[-1].at
                )
        self._tokens.expect(TokenKind.SIGN, ")", "to close the list")
        return found

    def _reject_column(self, column: Column) -> None:
        token = self._tokens.peek()
        if self._tokens.at_column():
            raise problem(
                f"column {column.name!r} is compared with {token}; only a literal is allowed there "
                "(strings are in single quotes)",
                token.at,
            )

    def _literal(self, wanted: str) -> Literal:
        token = self._tokens.take()
        if token.kind is TokenKind.KEYWORD and token.text in ("true", "false"):
            return Literal("boolean", token.text, token.at)
        if token.kind is TokenKind.NAME and token.text.lower() in ("date", "timestamp"):
            text = self._tokens.take()
            if text.kind is not TokenKind.STRING:
                raise problem(f"expected a quoted text after {token.text}, found {text}", text.at)
            return Literal(token.text.lower(), text.text, token.at)
        if token.kind is TokenKind.SIGN and token.text in ("+", "-"):
            number = self._tokens.take()
            if number.kind is not TokenKind.NUMBER:
                raise problem(f"expected a number after {token.text}, found {number}", number.at)
            return Literal("number", token.text + number.text, token.at)
        kind = kind_of(token.kind)
        if kind is not None:
            return Literal(kind, token.text, token.at)
        if token.kind is TokenKind.KEYWORD and token.text == "null":
            raise problem("nothing equals null; write is null or is not null", token.at)
        raise problem(f"expected {wanted}, found {token}", token.at)


def _like(column: Column, pattern: Token) -> Predicate:
    if pattern.kind is not TokenKind.STRING:
        raise problem(f"expected 'prefix%' after like, found {pattern}", pattern.at)
    if column.type != pa.string():
        raise problem(
            f"like needs a string column; {column.name!r} has type {column.type}", pattern.at
        )
    prefix, text, at = "", pattern.text, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            if text[at + 1 : at + 2] not in ("%", "_", "\\"):
                raise problem(r"in like, \ may precede only %, _ or another backslash", pattern.at)
            prefix += text[at + 1]
            at += 2
            continue
        if letter == "%" and at == len(text) - 1:
            return Prefix(column.id, prefix)
        if letter in "%_":
            raise problem(
                f"like {text[:40]!r}: only 'prefix%' is supported; write \\{letter} for the character itself",
                pattern.at,
            )
        prefix += letter
        at += 1
    return Compare(column.id, CompareOp.EQ, pa.scalar(prefix))
