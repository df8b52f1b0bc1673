"""The runner of pages: recognised steps, accepted and refused outputs."""

from pathlib import Path

import pytest

from tests.docs.pages import Shell, missing, steps

PAGE = """# A page
```sh
echo one
```
```text
one
```
Words.
```
not run
```
```sh refused
false
```
```text
...
```
```toml
a = 1
```
"""


def test_page_parser_returns_command_blocks_and_expected_output():
    first, second = steps(PAGE)
    assert (first.commands, first.refused, first.expected, first.line) == (
        "echo one\n", False, ("one",), 3,
    )  # fmt: skip
    assert (second.commands, second.refused, second.expected) == ("false\n", True, ("...",))


@pytest.mark.parametrize(
    ("expected", "absent"),
    [
        (("a b", "c..."), None),
        (("a   b",), None),
        (("...b", "d"), "d"),
        (("cde", "a b"), "a b"),
        (("a",), "a"),
    ],
)
def test_expected_lines_appear_in_their_order(expected, absent):
    assert missing(expected, "first\na b\ncde\n") == absent


def test_page_shell_keeps_variables_and_stops_at_first_failure(tmp_path: Path):
    shell = Shell(tmp_path, "nowhere:1", tmp_path)
    try:
        assert shell.run("x=7\necho $NYALA_MASTERS >&2") == (True, "nowhere:1\n")
        assert shell.run("printf $x") == (True, "7")
        good, output = shell.run("echo before\nfalse\necho behind")
        assert (good, output) == (False, "before\n")
    finally:
        shell.close()
