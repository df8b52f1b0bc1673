"""Markers of unfinished work, references to missing documents, generated pages."""

import ast
import re

import pytest

from tests.tidy.source import ROOT, product, tracked


def test_every_module_has_a_docstring():
    assert not [p for p, t in product().items() if not ast.get_docstring(t)]


MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "Not" + "ImplementedError")


@pytest.mark.parametrize("marker", MARKERS)
def test_no_marker_for_unfinished_work(marker):
    word = re.compile(rf"\b{marker}\b")
    files = [p for p in tracked("*.py") if "proto" not in p.parts]
    assert not [str(p.relative_to(ROOT)) for p in files if word.search(p.read_text())]


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
