"""What the tests of a tier came to, as tests/reporting.py wrote it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

NEVER_ENDED = "it began and did not end: its process crashed, or was ended after its limit"


@dataclass(slots=True)
class Seen:
    """Outcomes of tests.

    Attributes:
        passed: tests whose every phase passed or was skipped.
        failed: tests, and files that cannot be imported, with the first lines of the error.
        seconds: time of each test, with its setup and teardown.
    """

    passed: set[str] = field(default_factory=set)
    failed: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def read(report: Path) -> Seen:
    """Read a report; one that does not exist has no tests."""
    seen, begun = Seen(), set()
    for text in report.read_text().splitlines() if report.exists() else []:
        line = json.loads(text)
        test, outcome = line["test"], line.get("outcome")
        if outcome is None:
            begun.add(test)
            continue
        seen.seconds[test] = seen.seconds.get(test, 0.0) + line["seconds"]
        if outcome == "failed":
            seen.failed.setdefault(test, line["error"])
        elif line["phase"] == "call":
            seen.passed.add(test)
        if line["phase"] in ("teardown", "???") or outcome == "failed":
            begun.discard(test)
    for test in begun:
        seen.failed.setdefault(test, [NEVER_ENDED])
    seen.passed -= seen.failed.keys()
    return seen
