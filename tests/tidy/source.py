"""The project's files as syntax trees, and the questions that the rules of `tests/tidy` share."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src"
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


def tracked(pattern: str) -> list[Path]:
    """Return the files of a pattern that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [p for line in out.splitlines() if (p := ROOT / line).exists()]


@functools.cache
def product() -> dict[str, ast.Module]:
    """Return the modules of `src` by path, without generated ones."""
    files = [p for p in sorted(SRC.rglob("*.py")) if "proto" not in p.parts]
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in files}


@functools.cache
def own_tests() -> dict[str, ast.Module]:
    """Return the modules of `tests` by path."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in files}


def parsed(pattern: str) -> dict[str, ast.Module]:
    """Return the tracked modules of a pattern by path."""
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in tracked(pattern)}


def walk(kind: Any, trees: dict[str, ast.Module]) -> Iterator[tuple[str, Any]]:
    """Yield every node of a kind with the path of its file."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


def area(path: str) -> str:
    """Return the area of a file: `raft` for src/nyala/raft/node.py, `tests` for a test, else the folder."""
    parts = path.split("/")
    if parts[0] == "tests":
        return "tests"
    return parts[2] if parts[1] == "nyala" and len(parts) > 3 else parts[1]


def module(path: str) -> str:
    """Return the dotted name of a file's module."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def public(tree: ast.AST) -> Iterator[Any]:
    """Yield public functions, and the public methods of public classes; not functions in functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Functions) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of string statements: docstrings, those of constants too."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
