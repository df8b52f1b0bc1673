"""The recorded verdicts on mutants, with hashes of the code that they are about."""

import ast
import hashlib
import json
from functools import cache
from pathlib import Path

from scripts.mutation.edits import Mutant, apply, test_names


class Verdicts:
    """The recorded verdicts, one for each mutant, written to a file after each change."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._known = self._read()

    def of(self, suite: str, mutant: Mutant) -> str | None:
        """Return the verdict on this mutant of this file and these tests, or None where they have changed."""
        text = self._known.get(self._key(suite, mutant), "")
        hashes, _, verdict = text.partition(" ")
        return verdict if hashes == self._hashes(mutant) else None

    def record(self, suite: str, mutant: Mutant, verdict: str, tree: Path | None = None) -> None:
        """Write a verdict down, for the files of the tree in which it was found."""
        hashes = self._hashes(mutant, tree)
        self._known = self._read() | {self._key(suite, mutant): f"{hashes} {verdict}"}
        self._write()

    def keep_only(self, mutants: list[tuple[str, Mutant]]) -> None:
        """Remove the verdicts on mutants that do not exist any more."""
        keys = {self._key(suite, mutant) for suite, mutant in mutants}
        self._known = {k: v for k, v in self._known.items() if k in keys}
        self._write()

    def _read(self) -> dict[str, str]:
        known: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return known

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=0, sort_keys=True) + "\n")
        new.replace(self._path)

    @staticmethod
    def _key(suite: str, mutant: Mutant) -> str:
        edit = [mutant["file"], mutant["find"], mutant["replace"], mutant.get("killed_by", "")]
        return f"{suite}-{digest(json.dumps(edit))}"

    def _hashes(self, mutant: Mutant, tree: Path | None = None) -> str:
        root = tree or self._root
        file = (root / mutant["file"]).read_text()
        try:
            changed = _code(apply(file, mutant))
        except ValueError:
            changed = ""
        tests = "".join(_code(p.read_text()) for p in _test_files(root, mutant))
        return f"{digest(_code(file) + changed)}-{digest(tests)}"


@cache
def _code(text: str) -> str:
    """Return the code of a module without docstrings and comments, in one format; its text if it is none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_docstring(s)]
    return ast.unparse(tree) + "\n"


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def digest(text: str) -> str:
    """Return the beginning of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _test_files(root: Path, mutant: Mutant) -> list[Path]:
    """Return the files of the tests that must kill a mutant."""
    if "killed_by" not in mutant:
        return sorted((root / "tests" / "judge").glob("*.py"))
    paths = [root / name.partition("::")[0] for name in test_names(mutant)]
    return [f for p in paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
