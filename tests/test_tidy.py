"""Lint as an ordinary test: sizes as ratchets, banned names with their replacement, faces, empty tests."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
MAX_FILE, MAX_FUNCTION, MAX_CLASS, MAX_FACE = 300, 60, 150, 40

# Ratchet: what is over a limit, with the size that it may not pass. Entries only ever shrink or go.
OVER_FILE: dict[str, int] = {}
OVER_FUNCTION: dict[str, int] = {}
OVER_CLASS: dict[str, int] = {}

BANNED = {  # call -> (replacement, rooms under src/nyala where it is the real implementation)
    "time.time": ("env.clock.Clock", ("env",)),
    "time.time_ns": ("env.clock.Clock", ("env",)),
    "time.monotonic": ("env.clock.Clock", ("env",)),
    "time.monotonic_ns": ("env.clock.Clock", ("env",)),
    "time.sleep": ("env.tasks.Tasks.sleep_ms", ("env",)),
    "asyncio.sleep": ("env.tasks.Tasks.sleep_ms", ("env",)),
    "asyncio.wait": ("asyncio.gather (wait() orders by hash)", ()),
    "asyncio.as_completed": ("asyncio.gather (as_completed() orders by hash)", ()),
    "random.random": ("env.random", ("env",)),
    "random.randint": ("env.random", ("env",)),
    "random.choice": ("env.random", ("env",)),
    "uuid.uuid4": ("env.clock.random_id", ("env",)),
    "os.urandom": ("env.random", ("env",)),
    "os.fsync": ("env.files.Files", ("env",)),
    "os.rename": ("env.files.Files", ("env",)),
    "os.replace": ("env.files.Files", ("env",)),
    "datetime.now": ("env.clock.Clock", ()),
}
# Rooms at the edge, where a person, a process or Spark is met and no simulator runs.
EDGE = ("cli", "spark", "testing", "web")


def tracked(pattern: str) -> list[Path]:
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [p for line in out.splitlines() if (p := ROOT / line).exists()]


@functools.cache
def product() -> dict[str, ast.Module]:
    files = [p for p in sorted(SRC.rglob("*.py")) if "proto" not in p.parts]
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in files}


@functools.cache
def own_tests() -> dict[str, ast.Module]:
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in files}


@functools.cache
def code_lines(path: str) -> frozenset[int]:
    """Return the numbers of the lines that hold code: no docstring, comment or blank line."""
    text = (ROOT / path).read_text()
    tree = ast.parse(text)
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            prose.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return frozenset(n for n, t in lines if n not in prose and t.strip() and t.strip()[0] != "#")


def length(path: str, node: Any) -> int:
    """Return how many lines of code a function or class has."""
    return len(code_lines(path) & set(range(node.lineno, node.end_lineno + 1)))


def walk(kind, trees: dict[str, ast.Module]) -> Iterator[tuple[str, Any]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


def over(sizes: dict[str, int], limit: int, ratchet: dict[str, int]) -> list[str]:
    bad = [
        f"{n}: {s} lines (limit {ratchet.get(n, limit)})"
        for n, s in sizes.items()
        if s > ratchet.get(n, limit)
    ]
    return bad + [
        f"{n}: no longer over the limit; take it off the ratchet"
        for n in ratchet
        if sizes.get(n, 0) <= limit
    ]


def test_files_stay_small():
    sizes = {p: len(code_lines(p)) for p in product()}
    assert not over(sizes, MAX_FILE, OVER_FILE)


def test_functions_stay_small():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    sizes = {f"{p}::{n.name}": length(p, n) for p, n in walk(kinds, product())}
    assert not over(sizes, MAX_FUNCTION, OVER_FUNCTION)


def test_classes_stay_small():
    sizes = {f"{p}::{n.name}": length(p, n) for p, n in walk(ast.ClassDef, product())}
    assert not over(sizes, MAX_CLASS, OVER_CLASS)


def test_clock_random_and_files_come_from_the_environment():
    found = []
    for path, node in walk(ast.Attribute, product()):
        room = path.split("/")[2]
        name = ast.unparse(node)
        replacement, rooms = BANNED.get(name, ("", ()))
        if replacement and room not in rooms and room not in EDGE:
            found.append(f"{path}:{node.lineno} {name}: use {replacement}")
    assert not found


def test_faces_define_nothing():
    for path, tree in product().items():
        if path.endswith("__init__.py"):
            defined = [
                n.name for n in tree.body
                if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name not in ("__getattr__", "__dir__")
            ]  # fmt: skip
            assert not defined, f"{path} defines {defined}"
            assert len((ROOT / path).read_text().splitlines()) <= MAX_FACE, path


def test_every_module_says_what_it_is_for():
    assert not [p for p, t in product().items() if not ast.get_docstring(t)]


def test_broad_excepts_have_their_reason():
    found = []
    for path, node in walk(ast.ExceptHandler, product()):
        if isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"):
            lines = (ROOT / path).read_text().splitlines()
            near = "\n".join(lines[max(0, node.lineno - 3) : node.lineno + 3])
            if "#" not in near:
                found.append(f"{path}:{node.lineno}")
    assert not found


def test_no_sleep_in_tests():
    found = [
        f"{p}:{n.lineno}" for p, n in walk(ast.Call, own_tests())
        if ast.unparse(n.func).split(".")[-1] == "sleep"
    ]  # fmt: skip
    assert not found, "wait for a level with a deadline (tests/waiting.py), or advance virtual time"


def test_no_empty_tests():
    found = []
    for path, node in walk((ast.FunctionDef, ast.AsyncFunctionDef), own_tests()):
        if not node.name.startswith("test_"):
            continue
        body = [
            s
            for s in node.body
            if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        ]
        if not body or all(isinstance(s, ast.Pass) for s in body):
            found.append(f"{path}::{node.name}")
    assert not found


MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "Not" + "ImplementedError")


@pytest.mark.parametrize("marker", MARKERS)
def test_nothing_is_left_for_later(marker):
    word = re.compile(rf"\b{marker}\b")
    files = [p for p in tracked("*.py") if "proto" not in p.parts]
    assert not [str(p.relative_to(ROOT)) for p in files if word.search(p.read_text())]


def test_nothing_is_said_by_documents_that_are_not_here():
    """Rows (S0.1 ...) are in docs/internals/rows.md; what else is referred to is a page, or said in place."""
    elsewhere = re.compile(r"design section|style rule|trap T\d|\b[Ss]eed 00\d")
    files = [*tracked("src/*.py"), *tracked("docs/*.md"), *tracked("*.proto")]
    assert not [str(p.relative_to(ROOT)) for p in files if elsewhere.search(p.read_text())]


def test_the_options_page_is_current():
    from scripts import options_page

    assert options_page.PAGE.read_text() == options_page.page(), "run scripts/options_page.py"


def test_every_mutant_still_finds_its_place():
    from scripts import mutants

    for room, mutant in mutants.load([]):
        assert mutants.apply((ROOT / mutant["file"]).read_text(), mutant), room


def test_dead_modules():
    """Each module is imported by another, or is an entry point."""
    entries = re.compile(r"__init__|cli/main|pyspark_nyala|spark/demo|proto/|testing/plugin")
    imported = set()
    for trees in (product(), own_tests()):
        for path, node in walk((ast.Import, ast.ImportFrom), trees):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{a.name}" for a in node.names)
            elif isinstance(node, ast.Import):
                imported.update(a.name for a in node.names)
            del path
    text = "\n".join((ROOT / p).read_text() for p in product())
    modules = {p: p.removeprefix("src/").removesuffix(".py").replace("/", ".") for p in product()}
    dead = [
        p
        for p, m in modules.items()
        if not entries.search(p) and m not in imported and f'"{m}"' not in text
    ]
    assert not dead
