"""Pages are correct: README's code runs, links resolve, each row's test exists and names it."""

import re
import runpy
from pathlib import Path

import pytest

import nyala
from nyala.testing import MiniCluster

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
ROW_LINE = re.compile(r"^\| (S\d\.\d+|[AW]\d+) \|.*?`([\w/.]+\.py)::(\w+)")


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(secure=True) as running:
        yield running


def test_readme_commands_run(cluster, capsys):
    block = python_blocks(ROOT / "README.md")[0]
    exec(compile(block.replace("127.0.0.1:7051", cluster.masters), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("{'host': 'a', 'ts': 1, 'value': 9.0}\n")
    with nyala.connect(cluster.masters) as client:
        client.drop_table("metrics")


SCRIPTS = {
    "use/history.md": 7,
    "use/transactions.md": 8,
    "use/client.md": 8,
    "use/journals.md": 9,
    "use/recipes.md": 6,
    "use/recipe-tasks.md": 5,
    "use/asyncio.md": 2,
}
"""Pages whose Python is one script, and the number of its blocks with an output."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_page_runs_and_prints_documented_output(
    name, cluster, capsys, tmp_path, monkeypatch
):
    page = (ROOT / "docs" / name).read_text()
    shown = re.findall(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", page, re.S)
    assert sum(bool(text) for _, text in shown) == SCRIPTS[name]
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, object] = {}
    for block, text in shown:
        exec(compile(block.replace("127.0.0.1:7051", cluster.masters), name, "exec"), names)
        printed = capsys.readouterr().out
        assert not text or printed == text


def test_first_example_runs_and_equals_readme(cluster, capsys, monkeypatch):
    monkeypatch.setenv("NYALA_MASTERS", cluster.masters)
    runpy.run_path(str(ROOT / "examples" / "first_table.py"))
    assert "'value': 9.0" in capsys.readouterr().out
    example = (ROOT / "examples" / "first_table.py").read_text()
    for line in python_blocks(ROOT / "README.md")[0].splitlines():
        shown = line.split("#")[0].strip()
        if shown.startswith(("table.", "print(", "before")):
            assert shown in example, shown


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_each_row_names_existing_tests():
    page = ROOT / "docs" / "internals" / "guarantees.md"
    claimed = [m.groups() for line in page.read_text().splitlines() if (m := ROW_LINE.match(line))]
    assert len(claimed) > 20, "the table of rows is missing"
    for row, file, test in claimed:
        text = (ROOT / file).read_text()
        assert f"def {test}(" in text, f"{row}: {file} has no {test}"
        assert f'"{row}"' in text or row in text, f"{row}: {file} does not name it"


def test_each_scenario_of_a_row_names_it():
    page = (ROOT / "docs" / "internals" / "guarantees.md").read_text()
    named = re.findall(r"^\| (S\d\.\d+) \|.*`(tests/scenarios/[\w/.]+\.txt)`", page, re.M)
    assert len(named) > 10, "the scenarios are missing"
    for row, file in named:
        assert row in (ROOT / file).read_text(), f"{row}: {file} does not name it"


def test_readme_names_only_existing_verbs():
    verbs = set(re.findall(r"\./run (\w+)", "".join(p.read_text() for p in PAGES)))
    known = set(re.findall(r"^  (\w+)\)\s", (ROOT / "run").read_text(), re.M))
    assert verbs <= known, verbs - known
