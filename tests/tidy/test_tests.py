"""Tests assert something, wait for conditions, are named by a behaviour; every mutant applies."""

import ast
import functools

from scripts.mutation import edits
from tests.tidy.source import ROOT, Functions, own_tests, text_of, walk


def test_no_sleep_in_tests():
    found = [
        f"{p}:{n.lineno}" for p, n in walk(ast.Call, own_tests())
        if "sleep" in (getattr(n.func, "attr", ""), getattr(n.func, "id", ""))
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


@functools.cache
def _mutants() -> list[tuple[str, edits.Mutant]]:
    return edits.load([])


def test_every_mutant_applies_to_its_file():
    for suite, mutant in _mutants():
        assert edits.apply(text_of(mutant["file"]), mutant), suite


def test_every_test_that_kills_a_mutant_exists():
    lost = []
    for suite, mutant in _mutants():
        for named in edits.test_names(mutant):
            path, _, test = named.partition("::")
            name = test.partition("[")[0].rpartition("::")[2]
            found = (ROOT / path).exists()
            if not found or (name and f"def {name}(" not in text_of(path)):
                lost.append(f"{suite}: {named}")
    assert not lost


def test_names_of_tests_say_a_behaviour():
    named = [f"{p}:{n.lineno} {n.name}" for p, n in walk((*Functions, ast.ClassDef), own_tests())]
    assert not [n for n in named if "test_review_" in n]
    assert not [p for p in own_tests() if "/test_review_" in p]
