"""Fixtures of tests of verbs on the directories of stopped servers."""

import pytest

from nyala.env.files import SystemFiles


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A lock is the process's for its life; here each verb is a process, and `held` names the running."""
    running: set[str] = set()
    monkeypatch.setattr(SystemFiles, "lock", lambda self, path: path not in running)
    return running
