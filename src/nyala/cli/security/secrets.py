"""Passwords as commands read them: from standard input, the environment or a terminal, and no arguments."""

import os
import sys
from typing import Annotated

import typer

from nyala.common.errors import InvalidArgument
from nyala.security.files import PASSWORD_VARIABLE

PasswordStdin = Annotated[
    bool,
    typer.Option(
        "--password-stdin", help="Read the password from the first line of standard input."
    ),
]


def new_password(name: str, *, stdin: bool) -> str:
    """Return a new password for a user: the next line of standard input, or typed twice.

    Args:
        name: of the user.
        stdin: read it from standard input.

    Raises:
        InvalidArgument: standard input is no terminal, or the two differ.
    """
    if stdin:
        return _line()
    first = _typed(f"New password of {name}: ")
    if first != _typed("The same again: "):
        raise InvalidArgument("the two passwords differ; run the command again")
    return first


def present_password(name: str, *, stdin: bool) -> str:
    """Return the password of a user: from standard input, NYALA_PASSWORD, or typed.

    Args:
        name: of the user.
        stdin: read it from standard input.

    Raises:
        InvalidArgument: it is none of these.
    """
    if stdin:
        return _line()
    return os.environ.get(PASSWORD_VARIABLE) or _typed(f"Password of {name}: ")


def token_in(file: str) -> str:
    """Return the token in a file, without white space around it.

    Args:
        file: path; "-": standard input.

    Raises:
        InvalidArgument: the file cannot be read, or has none.
    """
    from nyala.security.accounts.issuers import MAX_TOKEN_BYTES

    try:
        if file == "-":
            found = sys.stdin.read(MAX_TOKEN_BYTES + 1)
        else:
            with open(file, encoding="ascii") as opened:
                found = opened.read(MAX_TOKEN_BYTES + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise InvalidArgument(f"the token in {file} cannot be read: {err}") from err
    if not found.strip() or len(found) > MAX_TOKEN_BYTES:
        raise InvalidArgument(
            f"{file} has no token, or more than {MAX_TOKEN_BYTES} bytes; write the token alone into it"
        )
    return found.strip()


def confirmed(question: str) -> bool:
    """Return whether the user answers yes at a terminal; without one, no."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} (yes/no) ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _line() -> str:
    found = sys.stdin.readline().rstrip("\r\n")
    if not found:
        raise InvalidArgument("standard input has no password; write it as its first line")
    return found


def _typed(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise InvalidArgument(
            "there is no terminal to read the password from; use --password-stdin, or for a login set "
            f"{PASSWORD_VARIABLE}"
        )
    import getpass

    return getpass.getpass(prompt, stream=sys.stderr)
