"""Skips these tests, with the reason, where the permissions of root on Linux are missing."""

import pytest

from tests.faults.support import sandbox


@pytest.fixture(autouse=True, scope="session")
def capable() -> None:
    if sentence := sandbox.missing():
        pytest.skip(sentence)
