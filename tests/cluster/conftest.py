"""One cluster for all modules that leave it as they found it; the others make their own."""

from collections.abc import Iterator

import pytest

from nyala.testing import MiniCluster
from tests.cluster.storm import wait_equal


@pytest.fixture(scope="session")
def cluster() -> Iterator[MiniCluster]:
    """Three masters and three tablet servers; a test that stops one starts it again."""
    with MiniCluster() as made:
        yield made
        wait_equal(made)
