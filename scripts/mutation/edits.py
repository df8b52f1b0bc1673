"""The mutants of tests/mutants/<suite>.toml: edits of a product file, and the tests that must fail."""

import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "mutants"

Mutant = dict[str, Any]


def load(suites: list[str]) -> list[tuple[str, Mutant]]:
    """Return (suite, mutant) of the named suites in their order, or of all."""
    known = [f.stem for f in sorted(FOLDER.glob("*.toml"))]
    unknown = [r for r in suites if r not in known]
    if unknown:
        sys.exit(f"no mutants for {unknown}; there are: {known}")
    return [
        (suite, mutant)
        for suite in suites or known
        for mutant in tomllib.loads((FOLDER / f"{suite}.toml").read_text())["mutant"]
    ]


def apply(text: str, mutant: Mutant) -> str:
    """Return a file's text with the mistake in it. Raises ValueError if `find` is not found once."""
    changed = text
    for find, replace in edits_of(mutant):
        if text.count(find) != 1:
            raise ValueError(f"`{find[:40]}` occurs {text.count(find)} times in {mutant['file']}")
        changed = changed.replace(find, replace)
    try:
        compile(changed, mutant["file"], "exec", dont_inherit=True)
    except SyntaxError as err:
        raise ValueError(f"{mutant['file']} does not compile any more: {err}") from None
    return changed


def edits_of(mutant: Mutant) -> list[tuple[str, str]]:
    """Return what a mutant finds, and what it puts in its place."""
    find, replace = mutant["find"], mutant["replace"]
    return [(find, replace)] if isinstance(find, str) else list(zip(find, replace, strict=True))


def arguments_of(mutant: Mutant) -> list[str]:
    """Return the arguments of pytest with which a mutant is killed."""
    tests = mutant.get("killed_by", "")
    return shlex.split(tests) if isinstance(tests, str) else list(tests)


def test_names(mutant: Mutant) -> list[str]:
    """Return the files, folders and tests of pytest that must kill a mutant; empty if the judge must."""
    return [a for a in arguments_of(mutant) if a.startswith("tests/")]
