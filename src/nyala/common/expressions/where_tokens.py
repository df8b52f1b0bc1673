"""Tokens of a `where` text: names, literals and signs, each with its position for error messages."""

import re
from dataclasses import dataclass
from enum import Enum

from nyala.common.errors import InvalidArgument

MAX_TEXT_BYTES = 1024 * 1024
MAX_NUMBER_CHARACTERS = 400
"""Maximum length of a number: enough for all digits of a double."""
KEYWORDS = frozenset(["and", "or", "not", "in", "between", "is", "null", "like", "true", "false"])


class TokenKind(Enum):
    """Kind of a token; the value is its name in errors."""

    NAME = "name"
    QUOTED_NAME = "quoted name"
    KEYWORD = "word"
    NUMBER = "number"
    STRING = "string"
    BINARY = "binary literal"
    SIGN = "sign"
    END = "end of the text"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: kind of the token.
        text: its value: keywords in lower case, names and strings without quotes, only the hex digits.
        at: position of its first character, from 1.
    """

    kind: TokenKind
    text: str
    at: int

    def __str__(self) -> str:
        return (
            self.kind.value
            if self.kind is TokenKind.END
            else f"{self.kind.value} {self.text[:40]!r}"
        )


_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<binary>[xX]'[^']*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<sign><>|!=|<=|>=|==|\|\||[=<>(),+*/%-])
    """,
    re.VERBOSE,
)


_SAME = {"!=": "<>", "==": "="}


def problem(what: str, at: int) -> InvalidArgument:
    """Return the error for a problem in a where text at a position, from 1."""
    return InvalidArgument(f"where, at character {at}: {what}", {"position": str(at)})


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a where text, ending with END.

    Raises:
        InvalidArgument: not a string, longer than 1 MiB, an unclosed quote, an invalid character.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f'where is a string such as "value > 3", not {type(text).__name__}')
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise InvalidArgument(
            f"where has more than {MAX_TEXT_BYTES} bytes; filter by fewer values, or in several scans"
        )
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unreadable(text, at)
        if found.lastgroup != "space":
            tokens.append(_token(found, at + 1))
        at = found.end()
    tokens.append(Token(TokenKind.END, "", len(text) + 1))
    return tokens


def _token(found: re.Match[str], at: int) -> Token:
    text = found.group()
    match found.lastgroup:
        case "binary":
            digits = text[2:-1]
            if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
                raise problem("x'...' takes an even number of hex digits, for instance x'00ff'", at)
            return Token(TokenKind.BINARY, digits, at)
        case "string":
            return Token(TokenKind.STRING, _valid(text[1:-1].replace("''", "'"), at), at)
        case "quoted":
            return Token(TokenKind.QUOTED_NAME, _valid(text[1:-1].replace('""', '"'), at), at)
        case "number":
            if len(text) > MAX_NUMBER_CHARACTERS:
                raise problem(
                    f"a number has at most {MAX_NUMBER_CHARACTERS} characters; round it", at
                )
            return Token(TokenKind.NUMBER, text, at)
        case "name":
            lower = text.lower()
            return (
                Token(TokenKind.KEYWORD, lower, at)
                if lower in KEYWORDS
                else Token(TokenKind.NAME, text, at)
            )
        case _:
            return Token(TokenKind.SIGN, _SAME.get(text, text), at)


def _valid(text: str, at: int) -> str:
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise problem("a lone surrogate is not a character; pass valid Unicode", at)
    return text


def _unreadable(text: str, at: int) -> InvalidArgument:
    if text[at] == "'":
        return problem(
            "this string has no closing '; a quote inside a string is written ''", at + 1
        )
    if text[at] == '"':
        return problem('this name has no closing "; a quote inside a name is written ""', at + 1)
    return problem(
        f"{text[at]!r} is not allowed here; names with special characters are in double quotes, "
        "strings in single quotes",
        at + 1,
    )


class Cursor:
    """Position in the tokens of a text, up to END."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self) -> Token:
        """Return the next token."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Return the next token and advance."""
        token = self._tokens[self._next]
        self._next += token.kind is not TokenKind.END
        return token

    def accept(self, kind: TokenKind, *texts: str) -> Token | None:
        """Return the next token and advance, if it is one of these."""
        token = self.peek()
        return self.take() if token.kind is kind and token.text in texts else None

    def accept_word(self, word: str) -> Token | None:
        """Return the next token and advance, if it is a word that is a keyword only here."""
        token = self.peek()
        if token.kind is TokenKind.NAME and token.text.lower() == word:
            return self.take()
        return None

    def expect(self, kind: TokenKind, text: str, context: str) -> None:
        """Require the next token and advance.

        Args:
            kind: kind of the token expected.
            text: text of the token expected.
            context: why it is expected, for the error.

        Raises:
            InvalidArgument: the next token is another one.
        """
        if self.accept(kind, text) is None:
            token = self.peek()
            raise problem(f"expected {text!r} {context}, found {token}", token.at)

    def at_column(self) -> bool:
        """Return whether a column name comes next; `date` and `timestamp` before a string begin a literal."""
        token = self.peek()
        typed = token.kind is TokenKind.NAME and token.text.lower() in ("date", "timestamp")
        if typed and self._tokens[self._next + 1].kind is TokenKind.STRING:
            return False
        return token.kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)


def quoted_name(name: str) -> str:
    """Return a column name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(value: str) -> str:
    """Return a string as a literal."""
    return "'" + value.replace("'", "''") + "'"
