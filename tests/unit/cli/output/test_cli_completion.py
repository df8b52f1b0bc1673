"""Completion of command lines by a shell: words, and nothing on standard error."""

import os
import subprocess
import sys

import pytest


def completed(line: str, folder: str) -> tuple[str, str]:
    """Return what bash would offer for the last word of a line, and the errors that its user would see."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "nyala"],
        env={
            **os.environ, "_NYALA_COMPLETE": "complete_bash", "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1), "NYALA_MASTERS": "",
        },
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("nyala tab", ["table", "tablet"]),
        ("nyala table describe --form", ["--format"]),
        ("nyala table list --format ", ["table", "json", "csv"]),
    ],
)
def test_word_is_completed_without_a_cluster_and_without_errors(tmp_path, line, offered):
    found, errors = completed(line, str(tmp_path))
    assert (found.split(), errors) == (offered, "")
