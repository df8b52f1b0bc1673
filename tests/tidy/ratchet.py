"""Counts that may only fall: `ratchet.toml` holds, for each rule, how often it is still broken, and where.

    python -m tests.tidy.ratchet

writes the counts of today where they are lower. It never raises one.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parent / "ratchet.toml"
HEAD = """# What still breaks a rule of tests/tidy, and how often: rule, place, count. Entries fall or go
# (`python -m tests.tidy.ratchet` lowers them). Nothing raises one: new code keeps the rule.
"""


def load() -> dict[str, dict[str, int]]:
    """Return the allowed counts: rule -> place -> count."""
    return tomllib.loads(FILE.read_text())


def check(rule: str, found: Mapping[str, list[str]]) -> None:
    """Compare what a rule finds with what it allows.

    Args:
        rule: table of `ratchet.toml`.
        found: place -> one line for each finding.

    Raises:
        AssertionError: a place has more or fewer findings than the file allows.
    """
    allowed = load().get(rule, {})
    more = [
        f"{place}: {len(lines)}, {allowed.get(place, 0)} allowed\n  " + "\n  ".join(lines)
        for place, lines in sorted(found.items())
        if len(lines) > allowed.get(place, 0)
    ]
    assert not more, f"{rule}: more than there were:\n" + "\n".join(more)
    fewer = sorted(p for p, n in allowed.items() if len(found.get(p, [])) < n)
    assert not fewer, (
        f"{rule}: fewer than allowed in {fewer}: run `python -m tests.tidy.ratchet`, which lowers the counts"
    )


def lower() -> None:
    """Write the counts of today where they are lower than those of the file."""
    from tests.tidy.rules import RULES

    allowed = load()
    text = HEAD
    for rule, find in RULES.items():
        found = find()
        old = allowed.get(rule)
        text += f"\n[{rule}]\n"
        for place, lines in sorted(found.items()):
            count = len(lines) if old is None else min(len(lines), old.get(place, 0))
            text += f'"{place}" = {count}\n' if count else ""
    FILE.write_text(text)


if __name__ == "__main__":
    lower()
