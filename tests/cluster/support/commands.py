"""Commands of nyala in processes of their own, for a cluster of a test."""

import os
import subprocess
import sys

from tests.waiting import within


def run(cluster, *words, env=(), answer=""):
    """Return the completed process of a command.

    Args:
        cluster: its masters are those of the command.
        words: of the command.
        env: further variables.
        answer: text of its standard input.
    """
    return subprocess.run(
        [sys.executable, "-m", "nyala", *words], text=True, capture_output=True, input=answer,
        timeout=within(120), env={**os.environ, "NYALA_MASTERS": cluster.masters, **dict(env)},
    )  # fmt: skip
