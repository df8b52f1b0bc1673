"""A pytest plugin: the fixture `nyala_cluster`, one MiniCluster per test module.

Use it with `pytest_plugins = ["nyala.testing.plugin"]` in a conftest.
"""

from collections.abc import Iterator

import pytest

from nyala.testing.minicluster import MiniCluster


@pytest.fixture(scope="module")
def nyala_cluster() -> Iterator[MiniCluster]:
    """Three masters and three tablet servers, shared by the tests of a module."""
    with MiniCluster() as cluster:
        yield cluster
