"""Texts of tests, scripts, benchmarks, scenarios and mutants use the terms of the field, no metaphors."""

import io
import re
import tokenize
from collections.abc import Iterator

from tests.tidy.source import ROOT, docstrings, own_tests, parsed, text_of, tracked

METAPHORS = re.compile(
    r"\b(storms?|patien(ce|t)|asleep|rouse[ds]?|dies|died|dying|heirs?|graves?|doomed|believ\w+|"
    r"promise[ds]?|heard|whoever|somebody|travel\w*|tells?|told|gives? up|gave up|giving up|"
    r"goes on|went on|again and again|on (its|the|their) way)\b",
    re.IGNORECASE,
)
"""Words removed from all texts. The glossary in CONTRIBUTING.md has the term for each idea."""
COMMENT = re.compile("#.*")
"""The end of a line after the first `#`, which is all of a comment unless the `#` is part of a string."""
IDENTIFIER = re.compile(r"`[^`]*`|https?://\S+")


def _texts() -> Iterator[tuple[str, str]]:
    """Yield place and text of docstrings, comments, reasons of mutants and comments of scenarios."""
    trees = own_tests() | parsed("scripts/*.py") | parsed("benchmarks/*.py")
    for path, tree in trees.items():
        yield from ((f"{path}:{line}", text) for line, text in docstrings(tree))
        text = text_of(path)
        if any(METAPHORS.search(comment) for comment in COMMENT.findall(text)):
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    yield f"{path}:{token.start[0]}", token.string
    for pattern, start in (
        ("tests/mutants/*.toml", ("why = ", "#")),
        ("tests/scenarios/*.txt", "#"),
    ):
        for file in tracked(pattern):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if line.startswith(start):
                    yield f"{file.relative_to(ROOT)}:{number}", line


def test_texts_have_no_metaphors():
    found = [
        f"{place}: {match[0]}"
        for place, text in _texts()
        if (match := METAPHORS.search(IDENTIFIER.sub("", text)))
    ]
    assert not found, "use the terms of the glossary in CONTRIBUTING.md:\n" + "\n".join(found)
