"""Patterns of `like`: `%` is any text, `_` any character; a backslash before one means itself."""

import re

from nyala.common.errors import InvalidArgument

MAX_PATTERN = 1000
"""Maximum length, in characters, of a pattern that is not only a text or a prefix."""
_PARTS = re.compile(r"\\[%_\\]|[^\\]", re.DOTALL)


def with_backslash(pattern: str, escape: str) -> str:
    """Return a pattern with the backslash as its escape character.

    Args:
        pattern: the pattern.
        escape: its escape character; empty: none.

    Raises:
        InvalidArgument: an escape character before none of %, _ and itself.
    """
    if escape == "\\":
        check_escapes(pattern)
        return pattern
    made: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if escape and letter == escape:
            letter = next(letters, "")
            if letter not in ("%", "_", escape):
                raise _wrong(escape)
            made.append(letter if letter not in "%_\\" else "\\" + letter)
        else:
            made.append("\\\\" if letter == "\\" else letter)
    return "".join(made)


def check_escapes(pattern: str) -> None:
    """Reject a pattern with a backslash before none of %, _ and the backslash.

    Raises:
        InvalidArgument: such a pattern.
    """
    if "\\" in pattern and sum(len(p) for p in _PARTS.findall(pattern)) != len(pattern):
        raise _wrong("\\")


def _wrong(escape: str) -> InvalidArgument:
    other = "backslash" if escape == "\\" else escape
    return InvalidArgument(f"in like, {escape} may precede only %, _ or another {other}")


def check_pattern(pattern: str) -> None:
    """Reject a pattern that is not evaluated.

    Raises:
        InvalidArgument: a pattern that is too long or has an invalid escape.
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidArgument(
            f"a pattern has at most {MAX_PATTERN} characters, except a prefix before one % at the end; "
            "use a shorter one"
        )
    check_escapes(pattern)


def literal_prefix(pattern: str) -> tuple[str, str]:
    """Return the text before the first wildcard, and the rest of the pattern from it on."""
    at = re.match(r"(?:\\.|[^%_\\])*", pattern, re.DOTALL).end()  # type: ignore[union-attr]
    return re.sub(r"\\(.)", r"\1", pattern[:at], flags=re.DOTALL), pattern[at:]
