"""Fixtures of the tests of tablets."""

import pytest

from tests.unit.tablet.support.tablet_support import Driver


@pytest.fixture
def driver(tmp_path):
    return Driver(str(tmp_path / "t"))
