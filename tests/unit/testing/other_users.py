"""Commands as other users, who may read all files, as the interpreter may be in a private folder."""

import os

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user")


def as_user(uid: int) -> list[str]:
    """Return the beginning of a command that runs as a user."""
    return [
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
        "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
    ]  # fmt: skip
