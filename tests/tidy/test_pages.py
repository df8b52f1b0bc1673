"""Markers of unfinished work, references to missing documents, generated pages."""

import ast
import re

import pytest

from tests.tidy.source import ROOT, product, text_of, tracked


def test_every_module_has_a_docstring():
    assert not [p for p, t in product().items() if not ast.get_docstring(t)]


MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "Not" + "ImplementedError")


@pytest.mark.parametrize("marker", MARKERS)
def test_no_marker_for_unfinished_work(marker):
    word = re.compile(rf"\b{marker}\b")
    files = [str(p.relative_to(ROOT)) for p in tracked("*.py") if "proto" not in p.parts]
    assert not [path for path in files if word.search(text_of(path))]


def test_no_references_to_missing_documents():
    """Rows (S0.1 ...) are in docs/internals/guarantees.md; other references are to pages."""
    elsewhere = re.compile(r"design section|style rule|trap T\d|\b[Ss]eed 00\d")
    files = [*tracked("src/*.py"), *tracked("docs/*.md"), *tracked("*.proto")]
    assert not [str(p.relative_to(ROOT)) for p in files if elsewhere.search(p.read_text())]


def test_architecture_picture_is_current():
    from scripts import architecture_picture

    written = architecture_picture.PAGE.read_text()
    assert written == architecture_picture.picture(), "run scripts/architecture_picture.py"


MODULE = re.compile(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md", "README.md"])
def test_modules_that_a_page_names_exist(name):
    homes = (ROOT, ROOT / "src" / "nyala")
    named = MODULE.findall((ROOT / name).read_text())
    assert not [n for n in named if not any((home / n).exists() for home in homes)]


def test_options_page_is_current():
    from scripts import options_page

    assert options_page.PAGE.read_text() == options_page.page(), "run scripts/options_page.py"


def _abuse_cases() -> str:
    page = (ROOT / "docs" / "internals" / "security.md").read_text()
    return page.partition("## Abuse cases")[2].partition("\n## ")[0]


def test_each_of_the_thirty_abuse_cases_has_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", _abuse_cases(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 31))
    for number, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert named, number
        assert not [n for f, n in named if f"def {n}(" not in (ROOT / f).read_text()], number


def test_tests_of_further_abuse_cases_exist():
    rows = _abuse_cases().partition("Further cases")[2].splitlines()
    texts = {p.name: p.read_text() for p in tracked("tests/*.py")}
    last = ""
    for word in re.findall(r"`([\w/.]+)`", "\n".join(r.rpartition(" | ")[2] for r in rows)):
        if word.endswith(".py"):
            last = word.rpartition("/")[2]
            assert last in texts, word
        elif word.startswith("tests/"):
            assert (ROOT / word).is_dir(), word
        else:
            assert f"def {word}(" in texts[last], f"{last}: {word}"


def test_tests_that_fuzz_exist():
    page = (ROOT / "docs" / "internals" / "security.md").read_text()
    named = re.findall(
        r"`(tests/[\w/]+\.py)`", page.partition("## Fuzzing")[2].partition("\n## ")[0]
    )
    assert len(named) > 5
    assert not [n for n in named if not (ROOT / n).exists()]
