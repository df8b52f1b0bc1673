"""The project's files as syntax trees, and the questions that the rules of `tests/tidy` share."""

import ast
import functools
import gc
import subprocess
from collections.abc import Iterable, Iterator
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
def text_of(path: str) -> str:
    """Return the text of a file, by its path below `ROOT`."""
    return (ROOT / path).read_text()


@functools.cache
def product() -> dict[str, ast.Module]:
    """Return the modules of `src` by path, without generated ones."""
    return _parse(p for p in sorted(SRC.rglob("*.py")) if "proto" not in p.parts)


@functools.cache
def own_tests() -> dict[str, ast.Module]:
    """Return the modules of `tests` by path."""
    return _parse(sorted((ROOT / "tests").rglob("*.py")))


def parsed(pattern: str) -> dict[str, ast.Module]:
    """Return the tracked modules of a pattern by path."""
    return _parse(tracked(pattern))


def _parse(files: Iterable[Path]) -> dict[str, ast.Module]:
    """Return syntax trees by path.

    They live as long as the process. Without the freeze each full collection visits their two million
    nodes, which takes most of the time of these tests.
    """
    gc.disable()
    try:
        trees = {p: ast.parse(text_of(p)) for p in (str(f.relative_to(ROOT)) for f in files)}
        for tree in trees.values():
            _by_kind(tree)
        gc.freeze()
    finally:
        gc.enable()
    return trees


@functools.cache
def _by_kind(tree: ast.Module) -> dict[type[ast.AST], list[ast.AST]]:
    """Return the nodes of a tree by their class, each list in the order of `ast.walk`."""
    nodes: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
    return nodes


def nodes_of(kind: Any, tree: ast.Module) -> Iterator[Any]:
    """Yield the nodes of a tree that are of one of the classes `kind`, class after class."""
    for one in kind if isinstance(kind, tuple) else (kind,):
        yield from _by_kind(tree).get(one, ())


def walk(kind: Any, trees: dict[str, ast.Module]) -> Iterator[tuple[str, Any]]:
    """Yield every node of a class, or of one of several, with the path of its file."""
    for path, tree in trees.items():
        for node in nodes_of(kind, tree):
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
    for node in nodes_of(ast.Expr, tree):
        match node.value:
            case ast.Constant(value=str(text)):
                yield node.lineno, text
