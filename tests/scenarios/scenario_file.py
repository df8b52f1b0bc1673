"""Files of scenarios in blocks: commands, `----`, and the expected transcript."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REWRITE = "NYALA_REWRITE"


@dataclass(frozen=True, slots=True)
class Block:
    """Comments and commands, and the expected transcript."""

    head: tuple[str, ...]
    expected: tuple[str, ...]


def parse(text: str) -> Iterator[Block]:
    """Split a scenario file into blocks; a block ends at an empty line after its `----`."""
    head: list[str] = []
    expected: list[str] | None = None
    for line in [*text.splitlines(), ""]:
        if expected is None and line == "----":
            expected = []
        elif expected is None:
            head.append(line)
        elif line:
            expected.append(line)
        else:
            yield Block(tuple(head), tuple(expected))
            head, expected = [], None
    assert not any(head), f"commands without ---- at the end: {head}"


def run(path: Path, command: Callable[[str], list[str]]) -> None:
    """Run the commands of a file, and compare (or, with NYALA_REWRITE=1, replace) its transcript.

    Args:
        path: of the file.
        command: runs one, and returns its transcript.

    Raises:
        AssertionError: the transcript differs.
    """
    written = []
    for block in parse(path.read_text()):
        happened: list[str] = []
        for line in block.head:
            if line and not line.startswith("#"):
                happened += command(line)
        written += [*block.head, "----", *happened, ""]
        if not os.environ.get(REWRITE):
            assert tuple(happened) == block.expected, _difference(path, block, happened)
    if os.environ.get(REWRITE):
        path.write_text("\n".join(written))


def _difference(path: Path, block: Block, happened: list[str]) -> str:
    want, got = "\n  ".join(block.expected), "\n  ".join(happened)
    commands = "\n  ".join(block.head)
    return f"{path.name}\n  {commands}\nexpected\n  {want}\nhappened\n  {got}"
