"""Fixtures of tests of verbs on the directories of stopped servers."""

import pytest

from nyala.env.files import SystemFiles


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Locks of data directories: each verb counts as a process, and `held` has the locks of running ones."""
    running: set[str] = set()
    monkeypatch.setattr(SystemFiles, "lock", lambda self, path: path not in running)
    return running
