"""The names that users type: `nyala.__all__`, verbs with their flags, options of servers.

    python -m tests.tidy.surface

rewrites `tests/golden/surface.txt`. A removed or changed name breaks
users' scripts: add a name, and keep the old one.
"""

from collections.abc import Iterator
from typing import Any

import typer

import nyala
from nyala.cli.main import app
from nyala.common.options import describe
from tests.tidy.source import ROOT

FILE = ROOT / "tests" / "golden" / "surface.txt"


def surface() -> str:
    """Return one line for each public name: `python NAME`, `verb NAME FLAGS`, `option NAME`."""
    lines = [f"python nyala.{name}" for name in vars(nyala)["__all__"]]
    lines += [f"verb {line}" for line in _verbs(typer.main.get_command(app), "nyala")]
    lines += [f"option {option.name}" for option in describe()]
    return "\n".join(lines) + "\n"


def _verbs(command: Any, name: str) -> Iterator[str]:
    group = hasattr(command, "commands")
    if not group or command.invoke_without_command:
        shown = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
        flags = [
            o
            for p in command.params
            if p.param_type_name == "option"
            for o in (*p.opts, *p.secondary_opts)
        ]
        yield " ".join([name, *shown, *sorted(flags)])
    if group:
        for word, below in sorted(command.commands.items()):
            yield from _verbs(below, f"{name} {word}")


if __name__ == "__main__":
    FILE.write_text(surface())
