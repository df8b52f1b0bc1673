"""These tests need what only root on Linux may do; they skip with the sentence of what is missing."""

import pytest

from tests.faults.support import sandbox


@pytest.fixture(autouse=True, scope="session")
def capable() -> None:
    if sentence := sandbox.missing():
        pytest.skip(sentence)
